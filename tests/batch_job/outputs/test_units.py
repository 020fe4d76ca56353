"""Every row is in exactly one unit, no unit is too large, equal texts meet, and nothing but the rows decides."""

import hashlib
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from batch_job.outputs import units
from batch_job.outputs.rows import text_hash
from batch_job.outputs.units import Bucket, Unit

#: Few texts, some said again and again.
SAID = st.lists(st.integers(0, 30), max_size=200)
UNIT_ROWS = st.integers(1, 20)


def hash_of(text: int) -> str:
    return hashlib.sha256(str(text).encode()).hexdigest()


def cut_up(texts: list[int], unit_rows: int, batch_rows: int) -> list[Unit]:
    """As driver and tasks do together, one task for all."""
    bits = units.cell_bits(len(texts), unit_rows)
    cells = [int(hash_of(text)[:8], 16) >> (32 - bits) for text in texts]
    buckets = units.pack(Counter(cells), unit_rows)
    number = {cell: bucket.number for bucket in buckets for cell in range(bucket.first, bucket.last + 1)}
    rows = sorted(
        (number[cell], hash_of(text), place) for place, (text, cell) in enumerate(zip(texts, cells, strict=True))
    )
    schema = pa.schema([(units.BUCKET, pa.int32()), (units.TEXT_HASH, pa.string()), ("place", pa.int64())])
    columns = [[row[column] for row in rows] for column in range(3)]
    table = pa.table(columns, schema=schema)
    return list(units.cut(iter(table.to_batches(max_chunksize=batch_rows)), unit_rows))


@given(SAID, UNIT_ROWS, st.integers(1, 50))
def test_every_row_is_in_exactly_one_unit_of_at_most_its_size(
    texts: list[int], unit_rows: int, batch_rows: int
) -> None:
    made = cut_up(texts, unit_rows, batch_rows)
    places = [place for unit in made for place in unit.rows.column("place").to_pylist()]
    assert sorted(places) == list(range(len(texts)))
    assert all(0 < unit.rows.num_rows <= unit_rows for unit in made)
    assert len({(unit.bucket, unit.part) for unit in made}) == len(made)


@given(SAID, UNIT_ROWS, st.integers(1, 50))
def test_equal_texts_meet_unless_they_are_more_than_a_unit(texts: list[int], unit_rows: int, batch_rows: int) -> None:
    met = defaultdict[str, Counter[tuple[int, int]]](Counter)
    for unit in cut_up(texts, unit_rows, batch_rows):
        met_here = Counter(unit.rows.column(units.TEXT_HASH).to_pylist())
        for text, count in met_here.items():
            met[text][unit.bucket, unit.part] = count
    for counts in met.values():
        # A text that is too much fills its units but the last.
        assert len(counts) == -(-counts.total() // unit_rows)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4)), max_size=60), st.integers(1, 8), st.integers(1, 50))
@example([(0, 0), (0, 1), (0, 1)], 2, 50)
def test_a_bucket_of_more_than_a_unit_is_cut_between_its_texts(
    rows: list[tuple[int, int]], unit_rows: int, batch_rows: int
) -> None:
    rows = sorted(rows)
    columns = {units.BUCKET: pa.array([bucket for bucket, _ in rows], pa.int32())}
    table = pa.table({**columns, units.TEXT_HASH: pa.array([str(text) for _, text in rows], pa.string())})
    parts = defaultdict[tuple[int, str], list[int]](list)
    for unit in units.cut(iter(table.to_batches(max_chunksize=batch_rows)), unit_rows):
        assert set(unit.rows.column(units.BUCKET).to_pylist()) == {unit.bucket}
        for text in set(unit.rows.column(units.TEXT_HASH).to_pylist()):
            parts[unit.bucket, text].append(unit.part)
    for (bucket, text), found in parts.items():
        assert len(found) == -(-rows.count((bucket, int(text))) // unit_rows)


@given(SAID, UNIT_ROWS, st.integers(1, 50), st.integers(1, 50), st.randoms())
def test_neither_the_order_of_rows_nor_of_batches_matters(
    texts: list[int], unit_rows: int, batch_rows: int, other_batch_rows: int, rng: random.Random
) -> None:
    def contents(texts: list[int], batch_rows: int) -> dict[tuple[int, int], list[str]]:
        made = cut_up(texts, unit_rows, batch_rows)
        return {(unit.bucket, unit.part): unit.rows.column(units.TEXT_HASH).to_pylist() for unit in made}

    shuffled = rng.sample(texts, len(texts))
    assert contents(texts, batch_rows) == contents(shuffled, other_batch_rows)


@given(st.lists(st.integers(0, 60), max_size=300), st.integers(1, 100))
def test_buckets_are_full_and_even(counts: list[int], unit_rows: int) -> None:
    cells = {cell: rows for cell, rows in enumerate(counts) if rows}
    buckets = units.pack(cells, unit_rows)
    assert sum(bucket.rows for bucket in buckets) == sum(counts)
    for one, another in itertools.pairwise(buckets):
        assert one.last < another.first
        assert one.first <= one.last
    for bucket in buckets:
        assert bucket.rows == sum(cells.get(cell, 0) for cell in range(bucket.first, bucket.last + 1))
        assert bucket.rows <= unit_rows or bucket.first == bucket.last


def test_a_night_is_cut_into_hardly_more_units_than_it_needs() -> None:
    rng = random.Random(0)
    bits = units.cell_bits(221_591, 4096)
    cells = Counter(rng.getrandbits(bits) for _ in range(221_591))
    buckets = units.pack(cells, 4096)
    assert len(buckets) <= 1.05 * 221_591 / 4096
    even = [bucket.rows for bucket in units.pack(Counter(rng.getrandbits(7) for _ in range(8_000)), 4096)]
    assert len(even) == 2
    assert max(even) - min(even) < 300
    full = [bucket.rows for bucket in units.pack(Counter(rng.getrandbits(9) for _ in range(8 * 4096)), 4096)]
    assert max(full) - min(full) < 1_000


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 9))
def test_tasks_get_whole_buckets_and_about_as_much_each(sizes: list[int], tasks: int) -> None:
    buckets = [Bucket(number, number, number, rows) for number, rows in enumerate(sizes)]
    given_to = units.share_out(buckets, tasks)
    load = [sum(rows for rows, task in zip(sizes, given_to, strict=True) if task == each) for each in range(tasks)]
    assert sum(load) == sum(sizes)
    assert max(load) - min(load) <= max(sizes, default=0)


def report_units(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for unit in units.cut(batches, 16):
        ids = unit.rows.column("id").to_pylist()
        hashes = unit.rows.column(units.TEXT_HASH).to_pylist()
        yield pa.RecordBatch.from_pylist([{"bucket": unit.bucket, "ids": ids, "hashes": hashes}])


@pytest.mark.parametrize("tasks", [1, 3])
def test_spark_brings_each_bucket_whole_to_one_task(spark: SparkSession, tasks: int) -> None:
    """By the hash that the table holds, whatever the text."""
    texts = ["", "a\0b", "日本", "🙂", "said again"] + ["said again"] * 40 + [f"text {number}" for number in range(60)]
    said = [{"id": f"{number:03d}", "text": text, "pair": None} for number, text in enumerate(texts)]
    said.append({"id": "pair", "text": "one", "pair": "other"})
    expected = {each["id"]: text_hash(str(each["text"])) for each in said}
    expected["pair"] = text_hash(("one", "other"))
    frame = spark.createDataFrame(pa.Table.from_pylist(said)).withColumn(units.TEXT_HASH, units.text_hash())
    bits = units.cell_bits(len(said), 16)
    cells = Counter(row["cell"] for row in frame.select(units.cell(bits).alias("cell")).collect())
    buckets = units.pack(cells, 16)
    wanted = buckets[1:]
    arranged = units.arranged(spark, frame, wanted, bits, tasks)
    found = arranged.mapInArrow(report_units, "bucket long, ids array<string>, hashes array<string>").collect()
    rows_of = Counter[int]()
    for unit in found:
        rows_of[unit["bucket"]] += len(unit["ids"])
        assert [expected[each] for each in unit["ids"]] == unit["hashes"] == sorted(unit["hashes"])
    assert dict(rows_of) == {bucket.number: bucket.rows for bucket in wanted}


@settings(max_examples=20)
@given(st.integers(0, 10**9), st.integers(1, 4096))
def test_the_driver_holds_a_bounded_number_of_cells(lines: int, unit_rows: int) -> None:
    assert 1 <= units.cell_bits(lines, unit_rows) <= 20
