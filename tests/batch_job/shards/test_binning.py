"""Every row is in exactly one unit, no unit is too large, equal texts meet, and nothing but the rows decides."""

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from batch_job.shards import binning
from batch_job.shards.binning import Bucket, Load, Unit
from batch_job.shards.schemas import text_hash
from tests.properties import examples

#: Few texts, some said again and again.
SAID = st.lists(st.integers(0, 30), max_size=200)
UNIT_ROWS = st.integers(1, 20)


def hash_of(text: int) -> str:
    return hashlib.sha256(str(text).encode()).hexdigest()


def loads(rows: Mapping[int, int]) -> dict[int, Load]:
    return {cell: Load(count, work=count) for cell, count in rows.items()}


def cut_up(texts: list[int], unit_rows: int, batch_rows: int) -> list[Unit]:
    """As driver and tasks do together, one task for all."""
    bits = binning.cell_bits(len(texts), unit_rows)
    cells = [int(hash_of(text)[:8], 16) >> (32 - bits) for text in texts]
    buckets = binning.pack(loads(Counter(cells)), unit_rows)
    number = {cell: bucket.number for bucket in buckets for cell in bucket.cells}
    rows = sorted(
        (number[cell], hash_of(text), place) for place, (text, cell) in enumerate(zip(texts, cells, strict=True))
    )
    schema = pa.schema([(binning.BUCKET, pa.int32()), (binning.TEXT_HASH, pa.string()), ("place", pa.int64())])
    columns = [[row[column] for row in rows] for column in range(3)]
    table = pa.table(columns, schema=schema)
    return list(binning.cut(iter(table.to_batches(max_chunksize=batch_rows)), unit_rows))


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
        met_here = Counter(unit.rows.column(binning.TEXT_HASH).to_pylist())
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
    columns = {binning.BUCKET: pa.array([bucket for bucket, _ in rows], pa.int32())}
    table = pa.table({**columns, binning.TEXT_HASH: pa.array([str(text) for _, text in rows], pa.string())})
    parts = defaultdict[tuple[int, str], list[int]](list)
    for unit in binning.cut(iter(table.to_batches(max_chunksize=batch_rows)), unit_rows):
        assert set(unit.rows.column(binning.BUCKET).to_pylist()) == {unit.bucket}
        for text in set(unit.rows.column(binning.TEXT_HASH).to_pylist()):
            parts[unit.bucket, text].append(unit.part)
    for (bucket, text), found in parts.items():
        assert len(found) == -(-rows.count((bucket, int(text))) // unit_rows)


@given(SAID, UNIT_ROWS, st.integers(1, 50), st.integers(1, 50), st.randoms())
def test_neither_the_order_of_rows_nor_of_batches_matters(
    texts: list[int], unit_rows: int, batch_rows: int, other_batch_rows: int, rng: random.Random
) -> None:
    def contents(texts: list[int], batch_rows: int) -> dict[tuple[int, int], list[str]]:
        made = cut_up(texts, unit_rows, batch_rows)
        return {(unit.bucket, unit.part): unit.rows.column(binning.TEXT_HASH).to_pylist() for unit in made}

    shuffled = rng.sample(texts, len(texts))
    assert contents(texts, batch_rows) == contents(shuffled, other_batch_rows)


@given(st.lists(st.integers(1, 60), max_size=300), st.integers(1, 100))
def test_every_cell_is_in_one_bucket_that_has_room_for_it(counts: list[int], unit_rows: int) -> None:
    cells = loads(dict(enumerate(counts)))
    buckets = binning.pack(cells, unit_rows)
    assert sorted(cell for bucket in buckets for cell in bucket.cells) == list(cells)
    for bucket in buckets:
        assert bucket.load == Load(*map(sum, zip(*(cells[cell] for cell in bucket.cells), strict=True)))
        assert bucket.rows <= unit_rows or len(bucket.cells) == 1
    assert [bucket.number for bucket in buckets] == list(range(len(buckets)))


def day_of(rows: int, unit_rows: int = 4096) -> dict[int, Load]:
    """Texts as chats have them: few are long. The rows of a cell, and their work, are as uneven as hashes make them."""
    rng, bits = random.Random(5), binning.cell_bits(rows, unit_rows)
    cells = defaultdict[int, Load](lambda: Load(0, 0))
    for _ in range(rows):
        place, work = rng.getrandbits(bits), min(1024, int(rng.lognormvariate(3.7, 1.0))) + 8
        cells[place] = Load(cells[place].rows + 1, cells[place].work + work)
    return dict(cells)


@pytest.mark.parametrize(("rows", "count"), [(400, 1), (4_000, 2), (8_000, 2), (9_000, 4), (32_000, 8), (221_591, 56)])
def test_units_are_hardly_more_than_needed_and_can_be_shared_out_evenly(rows: int, count: int) -> None:
    buckets = binning.pack(day_of(rows), 4096)
    assert len(buckets) == count
    work = [bucket.load.work for bucket in buckets]
    assert max(work) < 1.02 * sum(work) / count
    assert max(bucket.rows for bucket in buckets) <= 4096


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 9))
def test_tasks_get_whole_buckets_and_about_as_much_work_each(work: list[int], tasks: int) -> None:
    buckets = [Bucket(number, (number,), Load(7, each)) for number, each in enumerate(work)]
    given_to = binning.share_out(buckets, tasks)
    busy = [sum(each for each, task in zip(work, given_to, strict=True) if task == one) for one in range(tasks)]
    assert sum(busy) == sum(work)
    assert max(busy) - min(busy) <= max(work, default=0)


def report_units(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for unit in binning.cut(batches, 16):
        ids = unit.rows.column("id").to_pylist()
        hashes = unit.rows.column(binning.TEXT_HASH).to_pylist()
        yield pa.RecordBatch.from_pylist([{"bucket": unit.bucket, "ids": ids, "hashes": hashes}])


@pytest.mark.parametrize("tasks", [1, 3])
def test_spark_brings_each_bucket_whole_to_one_task(spark: SparkSession, tasks: int) -> None:
    """By the hash that the table holds, whatever the text."""
    texts = ["", "a\0b", "日本", "🙂", "said again"] + ["said again"] * 40 + [f"text {number}" for number in range(60)]
    said = [{"id": f"{number:03d}", "text": text, "pair": None} for number, text in enumerate(texts)]
    said.append({"id": "pair", "text": "one", "pair": "other"})
    expected = {each["id"]: text_hash(str(each["text"])) for each in said}
    expected["pair"] = text_hash(("one", "other"))
    frame = binning.hashed(spark.createDataFrame(pa.Table.from_pylist(said)))
    bits = binning.cell_bits(len(said), 16)
    cells = Counter(row["cell"] for row in frame.selectExpr(f"{binning.cell(bits)} as cell").collect())
    buckets = binning.pack(loads(cells), 16)
    wanted = buckets[1:]
    arranged = binning.arranged(frame, wanted, bits, tasks)
    found = arranged.mapInArrow(report_units, "bucket long, ids array<string>, hashes array<string>").collect()
    rows_of = Counter[int]()
    for unit in found:
        rows_of[unit["bucket"]] += len(unit["ids"])
        assert [expected[each] for each in unit["ids"]] == unit["hashes"] == sorted(unit["hashes"])
    assert dict(rows_of) == {bucket.number: bucket.rows for bucket in wanted}


def test_work_follows_a_text_as_far_as_a_model_reads(spark: SparkSession) -> None:
    said = [("", None), ("日本", None), ("one", "other"), ("a" * 5_000, None)]
    frame = spark.createDataFrame(said, "text string, pair string")
    assert [row["work"] for row in frame.selectExpr(f"{binning.WORK} as work").collect()] == [8, 14, 16, 1032]


@settings(max_examples=examples(20))
@given(st.integers(0, 10**9), st.integers(1, 4096))
def test_the_driver_holds_a_bounded_number_of_cells(lines: int, unit_rows: int) -> None:
    assert 1 <= binning.cell_bits(lines, unit_rows) <= 20
