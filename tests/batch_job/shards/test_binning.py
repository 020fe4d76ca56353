"""Every row is in exactly one shard, no shard is too large, equal texts meet, and nothing but the rows decides."""

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
from batch_job.shards.binning import Bin, Load, Shard
from batch_job.shards.schemas import text_hash
from tests.properties import examples

#: Few texts, some said again and again.
SAID = st.lists(st.integers(0, 30), max_size=200)
SHARD_ROWS = st.integers(1, 20)


def hash_of(text: int) -> str:
    return hashlib.sha256(str(text).encode()).hexdigest()


def loads(rows: Mapping[int, int]) -> dict[int, Load]:
    return {cell: Load(count, work=count) for cell, count in rows.items()}


def cut_up(texts: list[int], shard_rows: int, batch_rows: int) -> list[Shard]:
    """As driver and tasks do together, one task for all."""
    bits = binning.hash_cell_bits(len(texts), shard_rows)
    cells = [int(hash_of(text)[:8], 16) >> (32 - bits) for text in texts]
    bins = binning.pack(loads(Counter(cells)), shard_rows)
    number = {cell: bin_.number for bin_ in bins for cell in bin_.cells}
    rows = sorted(
        (number[cell], hash_of(text), place) for place, (text, cell) in enumerate(zip(texts, cells, strict=True))
    )
    schema = pa.schema([(binning.BIN, pa.int32()), (binning.TEXT_HASH, pa.string()), ("place", pa.int64())])
    columns = [[row[column] for row in rows] for column in range(3)]
    table = pa.table(columns, schema=schema)
    return list(binning.cut(iter(table.to_batches(max_chunksize=batch_rows)), shard_rows))


@given(SAID, SHARD_ROWS, st.integers(1, 50))
def test_every_row_is_in_exactly_one_shard_of_at_most_its_size(
    texts: list[int], shard_rows: int, batch_rows: int
) -> None:
    made = cut_up(texts, shard_rows, batch_rows)
    places = [place for shard in made for place in shard.rows.column("place").to_pylist()]
    assert sorted(places) == list(range(len(texts)))
    assert all(0 < shard.rows.num_rows <= shard_rows for shard in made)
    assert len({(shard.bin_number, shard.part) for shard in made}) == len(made)


@given(SAID, SHARD_ROWS, st.integers(1, 50))
def test_equal_texts_meet_unless_they_are_more_than_a_shard(texts: list[int], shard_rows: int, batch_rows: int) -> None:
    met = defaultdict[str, Counter[tuple[int, int]]](Counter)
    for shard in cut_up(texts, shard_rows, batch_rows):
        met_here = Counter(shard.rows.column(binning.TEXT_HASH).to_pylist())
        for text, count in met_here.items():
            met[text][shard.bin_number, shard.part] = count
    for counts in met.values():
        # A text that is too much fills its shards but the last.
        assert len(counts) == -(-counts.total() // shard_rows)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4)), max_size=60), st.integers(1, 8), st.integers(1, 50))
@example([(0, 0), (0, 1), (0, 1)], 2, 50)
def test_a_bin_of_more_than_a_shard_is_cut_between_its_texts(
    rows: list[tuple[int, int]], shard_rows: int, batch_rows: int
) -> None:
    rows = sorted(rows)
    columns = {binning.BIN: pa.array([bin_number for bin_number, _ in rows], pa.int32())}
    table = pa.table({**columns, binning.TEXT_HASH: pa.array([str(text) for _, text in rows], pa.string())})
    parts = defaultdict[tuple[int, str], list[int]](list)
    for shard in binning.cut(iter(table.to_batches(max_chunksize=batch_rows)), shard_rows):
        assert set(shard.rows.column(binning.BIN).to_pylist()) == {shard.bin_number}
        for text in set(shard.rows.column(binning.TEXT_HASH).to_pylist()):
            parts[shard.bin_number, text].append(shard.part)
    for (bin_number, text), found in parts.items():
        assert len(found) == -(-rows.count((bin_number, int(text))) // shard_rows)


@given(SAID, SHARD_ROWS, st.integers(1, 50), st.integers(1, 50), st.randoms())
def test_neither_the_order_of_rows_nor_of_batches_matters(
    texts: list[int], shard_rows: int, batch_rows: int, other_batch_rows: int, rng: random.Random
) -> None:
    def contents(texts: list[int], batch_rows: int) -> dict[tuple[int, int], list[str]]:
        made = cut_up(texts, shard_rows, batch_rows)
        return {(shard.bin_number, shard.part): shard.rows.column(binning.TEXT_HASH).to_pylist() for shard in made}

    shuffled = rng.sample(texts, len(texts))
    assert contents(texts, batch_rows) == contents(shuffled, other_batch_rows)


@given(st.lists(st.integers(1, 60), max_size=300), st.integers(1, 100))
def test_every_cell_is_in_one_bin_that_has_room_for_it(counts: list[int], shard_rows: int) -> None:
    cells = loads(dict(enumerate(counts)))
    bins = binning.pack(cells, shard_rows)
    assert sorted(cell for bin_ in bins for cell in bin_.cells) == list(cells)
    for bin_ in bins:
        assert bin_.load == Load(*map(sum, zip(*(cells[cell] for cell in bin_.cells), strict=True)))
        assert bin_.rows <= shard_rows or len(bin_.cells) == 1
    assert [bin_.number for bin_ in bins] == list(range(len(bins)))


def day_of(rows: int, shard_rows: int = 4096) -> dict[int, Load]:
    """Texts as chats have them: few are long. The rows of a cell, and their work, are as uneven as hashes make them."""
    rng, bits = random.Random(5), binning.hash_cell_bits(rows, shard_rows)
    cells = defaultdict[int, Load](lambda: Load(0, 0))
    for _ in range(rows):
        place, work = rng.getrandbits(bits), min(1024, int(rng.lognormvariate(3.7, 1.0))) + 8
        cells[place] = Load(cells[place].rows + 1, cells[place].work + work)
    return dict(cells)


@pytest.mark.parametrize(("rows", "count"), [(400, 1), (4_000, 2), (8_000, 2), (9_000, 4), (32_000, 8), (221_591, 56)])
def test_shards_are_hardly_more_than_needed_and_can_be_shared_out_evenly(rows: int, count: int) -> None:
    bins = binning.pack(day_of(rows), 4096)
    assert len(bins) == count
    work = [bin_.load.work for bin_ in bins]
    assert max(work) < 1.02 * sum(work) / count
    assert max(bin_.rows for bin_ in bins) <= 4096


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 9))
def test_tasks_get_whole_bins_and_about_as_much_work_each(work: list[int], tasks: int) -> None:
    bins = [Bin(number, (number,), Load(7, each)) for number, each in enumerate(work)]
    given_to = binning.assign_tasks(bins, tasks)
    busy = [sum(each for each, task in zip(work, given_to, strict=True) if task == one) for one in range(tasks)]
    assert sum(busy) == sum(work)
    assert max(busy) - min(busy) <= max(work, default=0)


def report_shards(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for shard in binning.cut(batches, 16):
        ids = shard.rows.column("id").to_pylist()
        hashes = shard.rows.column(binning.TEXT_HASH).to_pylist()
        yield pa.RecordBatch.from_pylist([{"bin": shard.bin_number, "ids": ids, "hashes": hashes}])


@pytest.mark.parametrize("tasks", [1, 3])
def test_spark_brings_each_bin_whole_to_one_task(spark: SparkSession, tasks: int) -> None:
    """By the hash that the table holds, whatever the text."""
    texts = ["", "a\0b", "日本", "🙂", "said again"] + ["said again"] * 40 + [f"text {number}" for number in range(60)]
    said = [{"id": f"{number:03d}", "text": text, "pair": None} for number, text in enumerate(texts)]
    said.append({"id": "pair", "text": "one", "pair": "other"})
    expected = {each["id"]: text_hash(str(each["text"])) for each in said}
    expected["pair"] = text_hash(("one", "other"))
    frame = binning.with_hashes(spark.createDataFrame(pa.Table.from_pylist(said)))
    bits = binning.hash_cell_bits(len(said), 16)
    cells = Counter(row["cell"] for row in frame.selectExpr(f"{binning.hash_cell(bits)} as cell").collect())
    bins = binning.pack(loads(cells), 16)
    wanted = bins[1:]
    arranged = binning.arranged(frame, wanted, bits, tasks)
    found = arranged.mapInArrow(report_shards, "bin long, ids array<string>, hashes array<string>").collect()
    rows_of = Counter[int]()
    for shard in found:
        rows_of[shard["bin"]] += len(shard["ids"])
        assert [expected[each] for each in shard["ids"]] == shard["hashes"] == sorted(shard["hashes"])
    assert dict(rows_of) == {bin_.number: bin_.rows for bin_ in wanted}


def test_work_follows_a_text_as_far_as_a_model_reads(spark: SparkSession) -> None:
    said = [("", None), ("日本", None), ("one", "other"), ("a" * 5_000, None)]
    frame = spark.createDataFrame(said, "text string, pair string")
    assert [row["work"] for row in frame.selectExpr(f"{binning.WORK} as work").collect()] == [8, 14, 16, 1032]


@settings(max_examples=examples(20))
@given(st.integers(0, 10**9), st.integers(1, 4096))
def test_the_driver_holds_a_bounded_number_of_cells(lines: int, shard_rows: int) -> None:
    assert 1 <= binning.hash_cell_bits(lines, shard_rows) <= 20
