"""What a partition is cut into: units, each one window of the engine, one file, and kept when the run is killed.

Rows fall into cells by the first bits of their text's hash. The driver, which knows only how many rows each cell has
and how much work they are, deals the cells out to buckets of at most a unit's rows, each about as much work as the
next. A bucket is a unit, unless one cell alone is larger: then the task that holds its rows cuts it. Nothing but the
rows and the size of a unit decides, so that every attempt, on any cluster, cuts alike.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame

#: Cells of a full unit: buckets come out full to a share of this, as long as no text comes very often.
_CELLS_OF_A_UNIT = 64
#: Most bits of a cell: the driver holds a count for each.
_MOST_BITS = 20

#: A day of fewer rows is one unit. Any other makes at least two, and a number that slots can share evenly: a power of
#: two up to this, then a multiple of it.
_LEAST_ROWS, _EVENLY = 512, 8

#: Bytes of a text that count as work, about as many as a model reads, and what a row takes whatever its text.
_MOST_BYTES, _ROW_BYTES = 1024, 8

#: Stands for the bucket of a cell whose rows are not wanted.
_NOWHERE = -1

#: Part of the plan id: units that were cut by another rule are other units.
RULE = 2

#: What `cut` reads of a row, beside whatever else it has.
BUCKET, TEXT_HASH = "bucket", "text_hash"

_BOTH = "cast(text as binary) || unhex('00') || cast(pair as binary)"

#: SQL for about how much of an engine's time a row takes, in bytes of text: its tokens are in proportion.
WORK = f"least(octet_length(text) + coalesce(octet_length(pair), 0), {_MOST_BYTES}) + {_ROW_BYTES}"


class Load(NamedTuple):
    """Rows, and how much `work` they are."""

    rows: int
    work: int


@dataclass(frozen=True)
class Bucket:
    """Cells, and what is in them together."""

    number: int
    cells: tuple[int, ...]
    load: Load

    @property
    def rows(self) -> int:
        return self.load.rows


@dataclass(order=True)
class _Hand:
    """A bucket while cells are dealt; that with the least work comes first."""

    work: int
    number: int
    rows: int = field(default=0, compare=False)
    cells: list[int] = field(default_factory=list, compare=False)

    def take(self, place: int, load: Load) -> None:
        self.cells.append(place)
        self.rows += load.rows
        self.work += load.work


@dataclass(frozen=True)
class Unit:
    """`rows` of one bucket, sorted by (text hash, id); part 0 is all of it as a rule."""

    bucket: int
    part: int
    rows: pa.RecordBatch


def cell_bits(lines: int, unit_rows: int) -> int:
    """Bits of a cell for a partition of so many lines."""
    return min(_MOST_BITS, max(1, math.ceil(math.log2(max(1.0, lines * _CELLS_OF_A_UNIT / unit_rows)))))


def hashed(lines: DataFrame) -> DataFrame:
    """Rows, and what `rows.text_hash` says of each one's text or pair."""
    return lines.selectExpr("*", f"sha2(coalesce({_BOTH}, cast(text as binary)), 256) as {TEXT_HASH}")


def cell(bits: int) -> str:
    """SQL for the cell of a row that has a text hash, from 0."""
    return f"cast(shiftright(cast(conv(substring({TEXT_HASH}, 1, 8), 16, 10) as bigint), {32 - bits}) as int)"


def number_of(rows: int, unit_rows: int) -> int:
    """Buckets that so many rows are dealt out to."""
    # With no room to spare, hardly a cell would fit the bucket that wants it.
    fewest = math.ceil(rows * (1 + 1 / _CELLS_OF_A_UNIT) / unit_rows)
    if fewest <= 1:
        return 1 if rows < _LEAST_ROWS else 2
    if fewest <= _EVENLY:
        return 1 << (fewest - 1).bit_length()
    return math.ceil(fewest / _EVENLY) * _EVENLY


def pack(cells: Mapping[int, Load], unit_rows: int) -> list[Bucket]:
    """Cells (cell → what is in it) into buckets: at most `unit_rows` rows each unless a single cell has more, and about
    as much work in one as in the next."""
    # Sorted, and so a heap.
    open_ = [_Hand(0, number) for number in range(number_of(sum(load.rows for load in cells.values()), unit_rows))]
    hands = list(open_)
    for place, load in sorted(cells.items(), key=lambda it: (-it[1].work, it[0])):
        # A hand without room for this cell is as good as full: a little room is left in each.
        while open_ and open_[0].cells and open_[0].rows + load.rows > unit_rows:
            heapq.heappop(open_)
        if not open_:
            hands.append(_Hand(0, len(hands)))
            open_.append(hands[-1])
        open_[0].take(place, load)
        heapq.heapreplace(open_, open_[0])
    dealt = [hand for hand in hands if hand.cells]
    return [Bucket(number, tuple(hand.cells), Load(hand.rows, hand.work)) for number, hand in enumerate(dealt)]


def share_out(buckets: Sequence[Bucket], tasks: int) -> list[int]:
    """The task of each bucket: that of the most work first, each to whoever has least to do."""
    busy = [(0, task) for task in range(tasks)]
    given = dict[int, int]()
    for bucket in sorted(buckets, key=lambda it: (-it.load.work, it.number)):
        work, task = heapq.heappop(busy)
        given[bucket.number] = task
        heapq.heappush(busy, (work + bucket.load.work, task))
    return [given[bucket.number] for bucket in buckets]


def arranged(hashed: DataFrame, buckets: Sequence[Bucket], bits: int, tasks: int) -> DataFrame:
    """The rows of `buckets`, and no others: each bucket whole in one task, sorted as `cut` wants them.

    Where a cell went is looked up in a constant: a join with it would be a job of its own, before any row moves.
    """
    numbers, given = [_NOWHERE] * (1 << bits), [_NOWHERE] * (1 << bits)
    for bucket, task in zip(buckets, share_out(buckets, tasks), strict=True):
        for place in bucket.cells:
            numbers[place], given[place] = bucket.number, task
    rows = hashed.selectExpr("*", f"{_of(numbers, cell(bits))} as {BUCKET}", f"{_of(given, cell(bits))} as task")
    rows = rows.filter(f"{BUCKET} != {_NOWHERE}").repartitionById(tasks, "task")
    return rows.sortWithinPartitions(BUCKET, TEXT_HASH, "id").drop("task")


def _of(numbers: Sequence[int], place: str) -> str:
    """SQL for the number at a place, from 0."""
    # Spark makes one constant of it when it plans, where `array` would be an expression for each number.
    return f"cast(split('{','.join(map(str, numbers))}', ',') as array<int>)[{place}]"


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
