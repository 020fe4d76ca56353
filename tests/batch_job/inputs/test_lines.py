"""Lines of any file are read in bounded pieces, whatever a small file unpacks to."""

import gzip
import io
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_job.inputs import lines
from batch_job.inputs.source import read_folder
from shared_model.errors import JobError

MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("day.jsonl.gz", b""),
        ("day.jsonl.gz", b'{"id": "1", "text": "card"}\n'),
        ("day.csv.gz", b""),
        ("day.csv.gz", b"id,text\n1,card\n"),
    ],
)
def test_a_line_of_200_megabytes_is_refused_by_file_and_number(tmp_path: Path, name: str, before: bytes) -> None:
    with gzip.open(tmp_path / name, "wb", compresslevel=1) as packed:
        packed.write(before)
        for _ in range(200):
            packed.write(b"x" * MEGABYTE)
    assert (tmp_path / name).stat().st_size < MEGABYTE
    number = before.count(b"\n") + 1
    tracemalloc.start()
    try:
        with pytest.raises(JobError, match=f"{name} cannot be read: line {number} is longer than 16 MiB"):
            read_folder(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 80 * MEGABYTE


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_lines_are_those_of_the_file(some: list[bytes]) -> None:
    content = b"\n".join(some)
    assert list(lines.lines(io.BytesIO(content))) == list(io.BytesIO(content))
    assert lines.count(io.BytesIO(content)) == len(list(io.BytesIO(content)))


@pytest.mark.parametrize("lengths", [[lines.LONGEST_LINE - 1], [5, lines.LONGEST_LINE - 1, 5]])
def test_a_line_at_the_limit_is_taken(lengths: list[int]) -> None:
    content = b"".join(b"x" * length + b"\n" for length in lengths)
    assert [len(line) - 1 for line in lines.lines(io.BytesIO(content))] == lengths
    assert lines.count(io.BytesIO(content)) == len(lengths)
