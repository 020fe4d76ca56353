"""What a partition is cut into: units, each one window of the engine, one file, and kept when the run is killed.

Rows fall into cells by the first bits of their text's hash. The driver, which knows only how many rows each cell has,
packs neighbouring cells into buckets of at most a unit's rows. A bucket is a unit, unless one cell alone is larger:
then the task that holds its rows cuts it. Nothing but the rows' text hashes and the size of a unit decides, so that
every attempt, on any cluster, cuts alike.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

#: Cells of a full unit: buckets come out full to a share of this, as long as no text comes very often.
_CELLS_OF_A_UNIT = 64
#: Most bits of a cell: the driver holds a count for each.
_MOST_BITS = 20

#: What `cut` reads of a row, beside whatever else it has.
BUCKET, TEXT_HASH = "bucket", "text_hash"


@dataclass(frozen=True)
class Bucket:
    """Neighbouring cells, `first` to `last`, and their rows."""

    number: int
    first: int
    last: int
    rows: int


@dataclass(frozen=True)
class Unit:
    """`rows` of one bucket, sorted by (text hash, id); part 0 is all of it as a rule."""

    bucket: int
    part: int
    rows: pa.RecordBatch


def cell_bits(lines: int, unit_rows: int) -> int:
    """Bits of a cell for a partition of so many lines."""
    return min(_MOST_BITS, max(1, math.ceil(math.log2(max(1.0, lines * _CELLS_OF_A_UNIT / unit_rows)))))


def text_hash() -> Column:
    """What `rows.text_hash` says of a row's text or pair."""
    both = sql.concat(sql.col("text").cast("binary"), sql.unhex(sql.lit("00")), sql.col("pair").cast("binary"))
    return sql.sha2(sql.coalesce(both, sql.col("text").cast("binary")), 256)


def cell(bits: int) -> Column:
    """The cell of a row that has a text hash."""
    return sql.shiftright(sql.conv(sql.substring(TEXT_HASH, 1, 8), 16, 10).cast("long"), 32 - bits)


def pack(counts: Mapping[int, int], unit_rows: int) -> list[Bucket]:
    """Cells (cell → rows) into buckets: at most `unit_rows` rows each unless a single cell has more, and about as many
    in one as in the next."""
    total = sum(counts.values())
    # A bucket ends with a cell: with no room for one, each would fall short, and what is left over make a tiny one.
    fewest = math.ceil(total * (1 + 1 / _CELLS_OF_A_UNIT) / unit_rows)
    fair = math.ceil(total / max(1, fewest))
    buckets: list[Bucket] = []
    for place, count in sorted(counts.items()):
        last = buckets[-1] if buckets else None
        if last and last.rows < fair and last.rows + count <= unit_rows:
            buckets[-1] = Bucket(last.number, last.first, place, last.rows + count)
        else:
            buckets.append(Bucket(len(buckets), place, place, count))
    return buckets


def share_out(buckets: Sequence[Bucket], tasks: int) -> list[int]:
    """The task of each bucket: the largest first, each to whoever has least to do."""
    load = [(0, task) for task in range(tasks)]
    given = dict[int, int]()
    for bucket in sorted(buckets, key=lambda it: (-it.rows, it.number)):
        rows, task = heapq.heappop(load)
        given[bucket.number] = task
        heapq.heappush(load, (rows + bucket.rows, task))
    return [given[bucket.number] for bucket in buckets]


def arranged(spark: SparkSession, hashed: DataFrame, buckets: Sequence[Bucket], bits: int, tasks: int) -> DataFrame:
    """The rows of `buckets`, and no others: each bucket whole in one task, sorted as `cut` wants them."""
    places = [
        {"cell": place, BUCKET: bucket.number, "task": task}
        for bucket, task in zip(buckets, share_out(buckets, tasks), strict=True)
        for place in range(bucket.first, bucket.last + 1)
    ]
    types = pa.schema([("cell", pa.int64()), (BUCKET, pa.int32()), ("task", pa.int32())])
    placed = spark.createDataFrame(pa.Table.from_pylist(places, schema=types))
    rows = hashed.withColumn("cell", cell(bits)).join(sql.broadcast(placed), "cell")
    return rows.repartitionById(tasks, "task").sortWithinPartitions(BUCKET, TEXT_HASH, "id").drop("cell", "task")


def cut(batches: Iterable[pa.RecordBatch], unit_rows: int) -> Iterator[Unit]:
    """Rows sorted by (bucket, text hash) → units. At most a unit's rows and a batch are held at a time."""
    rest: pa.RecordBatch | None = None
    named = (-1, -1)
    for batch, over in _and_whether_last(batches):
        rest = pa.concat_batches([rest, batch]) if rest is not None else batch
        while (end := unit_end(_buckets(rest), rest.column(TEXT_HASH), unit_rows, over)) is not None:
            bucket = int(_buckets(rest)[0])
            named = (bucket, named[1] + 1 if named[0] == bucket else 0)
            yield Unit(*named, rows=rest.slice(0, end))
            rest = rest.slice(end)


def unit_end(buckets: NDArray[np.int32], hashes: pa.Array, unit_rows: int, over: bool) -> int | None:
    """Where the first unit of sorted rows ends; None when it takes more rows to tell, or there are none.

    A text begins a new unit where it would not fit whole; if it is more than a unit's worth by itself, it is cut.
    `over`: no rows follow.
    """
    if not len(buckets):
        return None
    another = np.flatnonzero(buckets[: unit_rows + 1] != buckets[0])
    if another.size:
        return int(another[0])
    if len(buckets) <= unit_rows:
        return len(buckets) if over else None
    return int(pc.index(hashes.slice(0, unit_rows + 1), hashes[unit_rows]).as_py()) or unit_rows


def _buckets(rows: pa.RecordBatch) -> NDArray[np.int32]:
    return np.asarray(rows.column(BUCKET), np.int32)


def _and_whether_last(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, bool]]:
    before: pa.RecordBatch | None = None
    for batch in batches:
        if before is not None:
            yield before, False
        before = batch
    if before is not None:
        yield before, True
