"""Messages behind a URL are judged as those of a folder are, in every format, without a driver in Spark."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from batch_job.inputs import frames, pieces
from batch_job.inputs.source import Source
from batch_job.run_record import Columns, Format
from shared_model.demo_messages import DAMAGED_LINES
from shared_model.objects import open_objects
from tests.batch_job.conftest import DAY, message
from tests.object_store import Proxy

#: Small, so that files are cut: lines and row groups lie across the cuts.
PIECE = 700


@pytest.fixture(autouse=True)
def workers(spark: SparkSession, s3: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Python workers get the environment of this test."""
    monkeypatch.setattr(pieces, "_PIECE", PIECE)
    for name, value in s3.environment().items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    return


LINES = [message(number, f"my card number {number % 40} has not arrived") for number in range(60)]
MESSY = b"\n".join([*LINES[:30], *DAMAGED_LINES, b"", *LINES[30:]])
CSV = b'id,text\n1,"two\nlines"\n2,plain\n,no id\n3,"a ""quote"""\n'


def rows(number: int) -> pa.Table:
    return pa.table({"id": pa.array(range(number)), "text": [f"text {it}" for it in range(number)]})


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=7, write_page_checksum=True)
    return bytes(sink.getvalue())


def judged(spark: SparkSession, source: Source) -> list[tuple[object, ...]]:
    found = frames.judged(spark, source.read(DAY), keep=True).collect()
    wanted = ("id", "text", "reason", "raw")
    return sorted((tuple(row[name] for name in wanted) for row in found), key=repr)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", MESSY),
        ("b.jsonl", MESSY + b"\n"),
        ("c.csv", CSV),
        ("d.parquet", parquet(rows(100))),
    ],
)
def test_files_behind_a_url_are_judged_as_those_of_a_folder(
    spark: SparkSession, s3_url: str, tmp_path: Path, name: str, content: bytes
) -> None:
    for place in (s3_url, tmp_path):
        open_objects(place).put(f"ds={DAY}/{name}", content)
    expected = judged(spark, Source(str(tmp_path)))
    assert len(expected) > 3
    assert judged(spark, Source(s3_url)) == expected


def test_a_delta_table_behind_a_url_is_read_by_its_list_of_files(
    spark: SparkSession, s3_url: str, tmp_path: Path
) -> None:
    for place in (s3_url, str(tmp_path)):
        for number in (3, 9):
            table = rows(number).append_column("ds", pa.array([DAY] * number))
            write_deltalake(place, table, partition_by=["ds"], mode="overwrite")
    expected = judged(spark, Source(str(tmp_path), format=Format.DELTA))
    assert len(expected) == 9
    assert judged(spark, Source(s3_url)) == expected


#: No text twice.
IDS = [
    pa.array([1, 255], pa.uint8()),
    pa.array([2, 2**64 - 1], pa.uint64()),
    pa.array([0.5, 1e10], pa.float64()),
    pa.array([True, False]),
    pa.array([0, 86_400_000], pa.timestamp("ms")),
    pa.array([-1, 10**18 + 1], pa.timestamp("ns")),
    pa.array([0, 86_399_999], pa.time32("ms")),
    pa.array([19_000, 0], pa.date32()),
    pa.array(["1.50", "-2.25"]).cast(pa.decimal128(9, 2)),
    pa.array([b"ab", b"\xff"], pa.binary()),
    pa.array([b"abcd", b"\x00\x01\x02\x03"], pa.binary(4)),
    pa.array(["x", "y"]).dictionary_encode(),
]


def test_ids_of_every_type_are_the_same_text(spark: SparkSession, s3_url: str, tmp_path: Path) -> None:
    """Each type is that of one file of the day."""
    for number, ids in enumerate(IDS):
        content = parquet(pa.table({"key": ids, "text": ["one", "two"]}))
        for place in (s3_url, tmp_path):
            open_objects(place).put(f"ds={DAY}/{number}.parquet", content)
    columns = Columns("key", "text")
    expected = judged(spark, Source(str(tmp_path), columns=columns))
    assert len({row for row, *_ in expected}) == 2 * len(IDS)
    assert judged(spark, Source(s3_url, columns=columns)) == expected


def test_every_slot_has_a_piece_of_a_large_file_to_read(
    spark: SparkSession, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "_PIECE", 64 << 20)
    lines = [message(number, "x" * 1000) for number in range(4000)]
    open_objects(s3_url).put(f"ds={DAY}/a.jsonl", b"\n".join(lines))
    source = Source(s3_url).read(DAY)
    assert pieces.pieces(spark, source).count() == spark.sparkContext.defaultParallelism
    assert frames.judged(spark, source, keep=False).filter("reason is null").count() == len(lines)


def test_a_file_that_is_damaged_after_planning_is_named(spark: SparkSession, s3_url: str) -> None:
    content = bytearray(parquet(rows(100)))
    open_objects(s3_url).put(f"ds={DAY}/a.parquet", bytes(content))
    planned = Source(s3_url).read(DAY)
    content[40] ^= 1
    open_objects(s3_url).put(f"ds={DAY}/a.parquet", bytes(content))
    with pytest.raises(Exception, match=rf"JobError: {s3_url}/ds={DAY}/a.parquet cannot be read: .*"):
        frames.judged(spark, planned, keep=True).collect()
