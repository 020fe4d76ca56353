"""How a day is cut into shards. A shard is one window of the engine and one file, and it outlives a killed run.

A row's hash cell is the first bits of its text's hash. The driver knows how many rows each hash cell has and how much
work they are, and packs the hash cells into bins of at most a shard's rows and about equal work. A bin is one shard,
unless a single hash cell is larger: then the task that holds its rows cuts it into parts. Only the rows and the size of
a shard decide, so every attempt, on any cluster, cuts alike.
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

#: Hash cells of a full shard: bins are full to a share of this, unless one text comes very often.
_CELLS_PER_SHARD = 64
#: Most bits of a hash cell: the driver holds a count for each.
_MOST_BITS = 20

#: A day of fewer rows is one shard. Any other has at least two, and a number that slots can share evenly: a power of
#: two up to this, then a multiple of it.
_LEAST_ROWS, _EVENLY = 512, 8

#: Bytes of a text that count as work, about as many as a model reads, and the work of a row whatever its text.
_MOST_BYTES, _ROW_BYTES = 1024, 8

#: Bytes of the number of a bin or a task: there are no more of them than hash cells.
_NUMBER_BYTES = 3
#: The bin number of hash cells whose rows are not wanted.
_NO_BIN = (1 << 8 * _NUMBER_BYTES) - 1

#: Part of the input fingerprint: another rule makes other shards.
RULE = 2

#: Columns that `cut` reads.
BIN, TEXT_HASH = "bin", "text_hash"

_BOTH = "cast(text as binary) || unhex('00') || cast(pair as binary)"

#: SQL for about how much of an engine's time a row takes, in bytes of text: its tokens are in proportion.
WORK = f"least(octet_length(text) + coalesce(octet_length(pair), 0), {_MOST_BYTES}) + {_ROW_BYTES}"


class Load(NamedTuple):
    """Rows, and how much `work` they are."""

    rows: int
    work: int


@dataclass(frozen=True)
class Bin:
    """Hash cells and their load."""

    number: int
    cells: tuple[int, ...]
    load: Load

    @property
    def rows(self) -> int:
        return self.load.rows


@dataclass(order=True)
class _OpenBin:
    """A bin while hash cells are packed; the one with the least work sorts first."""

    work: int
    number: int
    rows: int = field(default=0, compare=False)
    cells: list[int] = field(default_factory=list, compare=False)

    def add(self, cell: int, load: Load) -> None:
        self.cells.append(cell)
        self.rows += load.rows
        self.work += load.work


@dataclass(frozen=True)
class Shard:
    """`rows` of one bin, sorted by (text hash, id); part 0 is usually all of it."""

    bin_number: int
    part: int
    rows: pa.RecordBatch


def hash_cell_bits(lines: int, shard_rows: int) -> int:
    """Bits of a hash cell for a partition of so many lines."""
    return min(_MOST_BITS, max(1, math.ceil(math.log2(max(1.0, lines * _CELLS_PER_SHARD / shard_rows)))))


def with_hashes(lines: DataFrame) -> DataFrame:
    """The lines with the column `text_hash`, which equals `schemas.text_hash` of the text or pair."""
    return lines.selectExpr("*", f"sha2(coalesce({_BOTH}, cast(text as binary)), 256) as {TEXT_HASH}")


def hash_cell(bits: int) -> str:
    """SQL for the hash cell of a row, from 0."""
    return f"cast(shiftright(cast(conv(substring({TEXT_HASH}, 1, 8), 16, 10) as bigint), {32 - bits}) as int)"


def bin_count(rows: int, shard_rows: int) -> int:
    """Bins for so many rows."""
    # Without spare room, hardly a hash cell would fit the bin with the least work.
    fewest = math.ceil(rows * (1 + 1 / _CELLS_PER_SHARD) / shard_rows)
    if fewest <= 1:
        return 1 if rows < _LEAST_ROWS else 2
    if fewest <= _EVENLY:
        return 1 << (fewest - 1).bit_length()
    return math.ceil(fewest / _EVENLY) * _EVENLY


def pack(cells: Mapping[int, Load], shard_rows: int) -> list[Bin]:
    """Pack hash cells (cell → load) into bins of at most `shard_rows` rows, unless a single cell has more, and of about
    equal work."""
    # Sorted, and so a heap.
    open_ = [_OpenBin(0, number) for number in range(bin_count(sum(load.rows for load in cells.values()), shard_rows))]
    bins = list(open_)
    for cell, load in sorted(cells.items(), key=lambda it: (-it[1].work, it[0])):
        # A bin without room for this cell counts as full: a little room is left in each.
        while open_ and open_[0].cells and open_[0].rows + load.rows > shard_rows:
            heapq.heappop(open_)
        if not open_:
            bins.append(_OpenBin(0, len(bins)))
            open_.append(bins[-1])
        open_[0].add(cell, load)
        heapq.heapreplace(open_, open_[0])
    filled = [bin_ for bin_ in bins if bin_.cells]
    return [Bin(number, tuple(bin_.cells), Load(bin_.rows, bin_.work)) for number, bin_ in enumerate(filled)]


def assign_tasks(bins: Sequence[Bin], tasks: int) -> list[int]:
    """The task of each bin: bins in order of falling work, each to the task with the least so far."""
    heap = [(0, task) for task in range(tasks)]
    assigned = dict[int, int]()
    for bin_ in sorted(bins, key=lambda it: (-it.load.work, it.number)):
        work, task = heapq.heappop(heap)
        assigned[bin_.number] = task
        heapq.heappush(heap, (work + bin_.load.work, task))
    return [assigned[bin_.number] for bin_ in bins]


def arranged(hashed: DataFrame, bins: Sequence[Bin], bits: int, tasks: int) -> DataFrame:
    """The rows of `bins`, and no others: each bin whole in one task, sorted as `cut` needs them.

    The bin of a hash cell is looked up in a constant: a join with it would be a job of its own, before any row moves.
    """
    bin_of_cell, task_of_cell = [_NO_BIN] * (1 << bits), [_NO_BIN] * (1 << bits)
    for bin_, task in zip(bins, assign_tasks(bins, tasks), strict=True):
        for cell in bin_.cells:
            bin_of_cell[cell], task_of_cell[cell] = bin_.number, task
    bin_sql, task_sql = (_looked_up(numbers, hash_cell(bits)) for numbers in (bin_of_cell, task_of_cell))
    rows = hashed.selectExpr("*", f"{bin_sql} as {BIN}", f"{task_sql} as task")
    rows = rows.filter(f"{BIN} != {_NO_BIN}").repartitionById(tasks, "task")
    return rows.sortWithinPartitions(BIN, TEXT_HASH, "id").drop("task")


def _looked_up(numbers: Sequence[int], place: str) -> str:
    """SQL for the number at a place. Every task deserialises the constant: bytes are copied, but an array of Spark
    holds an object for each number."""
    table = b"".join(number.to_bytes(_NUMBER_BYTES) for number in numbers)
    found = f"substring(X'{table.hex()}', {_NUMBER_BYTES} * {place} + 1, {_NUMBER_BYTES})"
    return f"cast(conv(hex({found}), 16, 10) as int)"


def cut(batches: Iterable[pa.RecordBatch], shard_rows: int) -> Iterator[Shard]:
    """Cut rows sorted by (bin, text hash) into shards. Memory holds at most a shard's rows and a batch."""
    rest: pa.RecordBatch | None = None
    name = (-1, -1)
    for batch, last in _with_last_flag(batches):
        rest = pa.concat_batches([rest, batch]) if rest is not None else batch
        while (end := shard_end(_bin_numbers(rest), rest.column(TEXT_HASH), shard_rows, last)) is not None:
            number = int(_bin_numbers(rest)[0])
            name = (number, name[1] + 1 if name[0] == number else 0)
            yield Shard(*name, rows=rest.slice(0, end))
            rest = rest.slice(end)


def shard_end(bins: NDArray[np.int32], hashes: pa.Array, shard_rows: int, last: bool) -> int | None:
    """The end of the first shard of sorted rows; None when more rows are needed to find it, or `bins` is empty.

    A text begins a new shard where it would not fit whole; if it alone is more than a shard, it is cut.
    `last`: no rows follow.
    """
    if not len(bins):
        return None
    another = np.flatnonzero(bins[: shard_rows + 1] != bins[0])
    if another.size:
        return int(another[0])
    if len(bins) <= shard_rows:
        return len(bins) if last else None
    return int(pc.index(hashes.slice(0, shard_rows + 1), hashes[shard_rows]).as_py()) or shard_rows


def _bin_numbers(rows: pa.RecordBatch) -> NDArray[np.int32]:
    return np.asarray(rows.column(BIN), np.int32)


def _with_last_flag(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, bool]]:
    before: pa.RecordBatch | None = None
    for batch in batches:
        if before is not None:
            yield before, False
        before = batch
    if before is not None:
        yield before, True
