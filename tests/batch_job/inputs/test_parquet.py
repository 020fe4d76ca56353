"""Which Parquet files tell of damage: those in which every page that is read carries a checksum."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batch_job.inputs import parquet
from batch_job.inputs.source import read_folder
from batch_job.run_record import COLUMNS
from shared_model.errors import JobError

ROWS = pa.table({"id": ["a", "b"], "text": ["hello", "world"], "other": ["p", "q"]})
_NUMBER, _MORE = 0x15, 0x80


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two row groups of three columns, one page each."""
    pq.write_table(ROWS, tmp_path / "a.parquet", row_group_size=1, use_dictionary=False, write_page_checksum=True)
    return tmp_path / "a.parquet"


def strip(path: Path, group: int, column: str) -> None:
    """Take the checksum out of a page's header, in place, as a file has it that was put together from files of two
    writers. The three numbers before it fill its room: Thrift reads them with leading zeros, too."""
    content, footer = bytearray(path.read_bytes()), pq.read_metadata(path)
    start = at = footer.row_group(group).column(footer.schema.names.index(column)).data_page_offset
    numbers = list[bytes]()
    for _ in range(4):
        assert content[at] == _NUMBER
        end = next(i for i in range(at + 1, at + 6) if not content[i] & _MORE) + 1
        numbers.append(bytes(content[at + 1 : end]))
        at = end
    *kept, checksum = numbers
    spare, header = 1 + len(checksum), b""
    for number in kept:
        zeros = min(spare, 5 - len(number))
        spare -= zeros
        header += bytes([_NUMBER]) + (padded(number, zeros) if zeros else number)
    content[start:at] = header
    # The next field is told by how far it is from the one before.
    content[at] += 0x10
    path.write_bytes(content)


def padded(number: bytes, zeros: int) -> bytes:
    return number[:-1] + bytes([number[-1] | _MORE]) + bytes([_MORE]) * (zeros - 1) + b"\0"


def unchecked(path: Path) -> bool:
    with open(path, "rb") as content:
        return parquet.unchecked(content, COLUMNS.names)


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("column", COLUMNS.names)
def test_one_page_without_a_checksum_is_enough(path: Path, group: int, column: str) -> None:
    assert not unchecked(path)
    strip(path, group, column)
    assert pq.ParquetFile(path, page_checksum_verification=True).read().equals(ROWS)
    assert unchecked(path)


def test_a_column_that_is_not_read_need_not_have_any(path: Path) -> None:
    strip(path, 1, "other")
    assert not unchecked(path)


def test_control_what_has_no_checksum_reads_back_as_something_else(path: Path) -> None:
    strip(path, 1, "text")
    path.write_bytes(path.read_bytes().replace(b"world", b"wOrld"))
    assert pq.ParquetFile(path, page_checksum_verification=True).read()["text"].to_pylist() == ["hello", "wOrld"]


def test_no_rows_need_no_checksums() -> None:
    content = io.BytesIO()
    pq.write_table(ROWS.slice(0, 0), content)
    assert not parquet.unchecked(content, COLUMNS.names)


def test_a_page_that_is_not_there_is_damage_of_the_file(path: Path) -> None:
    pq.write_table(pa.table({"other": ["x" * 10_000], "id": ["a"], "text": ["b"]}), path, compression="none")
    footer = pq.read_metadata(path)
    with open(path, "wb") as file:
        footer.write_metadata_file(file)
    with pytest.raises(JobError, match=r"a\.parquet cannot be read: no page begins at byte 10\d\d\d"):
        read_folder(path.parent)
