"""Any text survives CSV of any writer; quotes that do not fit are an error, never another text."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_job.inputs import csv_records
from batch_job.inputs.csv_records import records

_TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from(list('",\r\n\0 ')))


def parsed(content: bytes) -> list[list[str]]:
    lines = content.split(b"\n")
    return list(records(lines if lines[-1] else lines[:-1]))


@given(st.lists(st.tuples(_TEXT, _TEXT)), st.sampled_from(["\r\n", "\n"]))
def test_what_was_written_is_read(rows: list[tuple[str, str]], end: str) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(rows)
    assert parsed(text.getvalue().encode()) == [list(row) for row in rows]


@given(st.lists(_TEXT.map(lambda text: text.replace("\n", "")), min_size=2).map("\r".join))
def test_a_carriage_return_that_nobody_quoted_is_part_of_its_text(text: str) -> None:
    """As pandas writes them."""
    content = '"' + text.replace('"', '""') + '"' if set('",\n') & set(text) else text
    assert parsed(f"{content},end\n".encode()) == [[text, "end"]]


def test_a_byte_order_mark_is_no_part_of_the_first_column() -> None:
    assert parsed(b"\xef\xbb\xbfid,text\r\na,b") == [["id", "text"], ["a", "b"]]


def test_an_empty_line_is_a_record_without_fields() -> None:
    assert parsed(b"id,text\n\na,b\n\n") == [["id", "text"], [], ["a", "b"], []]
    assert csv_records.rows(io.BytesIO(b"id,text\n\na,b\n\n")) == 3


@given(st.binary(max_size=40).filter(lambda text: not set(b'",\r\n') & set(text)))
def test_bytes_that_are_no_utf8_are_kept(text: bytes) -> None:
    [[read, _]] = parsed(text + b",end\n")
    assert read.encode("utf-8", "surrogateescape") == text.removeprefix(b"\xef\xbb\xbf")


@given(st.lists(_TEXT))
def test_rows_are_counted_as_they_are_read(texts: list[str]) -> None:
    content = "\n".join(["text", *texts]).encode()
    try:
        read = parsed(content)
    except ValueError:
        with pytest.raises(ValueError, match="line "):
            csv_records.rows(io.BytesIO(content))
    else:
        assert csv_records.rows(io.BytesIO(content)) == len(read) - 1
