"""Quarantined lines, read back: those of one attempt, for people."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice, zip_longest

import pyarrow as pa
from deltalake.exceptions import DeltaError

from batch_job.inputs.delta import find_table
from batch_job.run_record import QuarantinedLine
from batch_job.shards import shard_files
from batch_job.shards.shard_files import FileReport
from batch_job.tables import table
from shared_model.errors import JobError
from shared_model.objects import Location, join

#: Columns that `examples` needs.
COLUMNS = ("reason", "file", "raw")
MOST = 5
#: Characters of a line that an example shows.
_SHOWN = 200


@dataclass(frozen=True)
class Line:
    """`raw`: its beginning, as it stands in `file`; `raw_bytes`: of the whole line."""

    reason: str
    file: str
    raw: bytes
    raw_bytes: int

    @property
    def text(self) -> str:
        """The raw bytes in one printable line; those that are no UTF-8 as \\xff."""
        shown = printable(self.raw.decode("utf-8", "backslashreplace"))
        return shown if self.raw_bytes <= len(self.raw) else f"{shown}… ({self.raw_bytes:,} bytes)"


def lines(folder: Location, ds: str, attempt: int) -> Iterator[Line]:
    """Those that one attempt quarantined. Raises: JobError naming what is damaged."""
    if (found := find_table(folder)) is None:
        return
    for batch in table.read_files(found, ds, ["attempt", "reason", "file", "raw", "raw_bytes"]):
        for row in batch.to_pylist():
            if row.pop("attempt") == attempt:
                yield Line(**row)


def expire(folder: Location, before: datetime) -> int:
    """Delete the lines of days whose last ones were added before a moment; returns how many days. Readers of an earlier
    version keep its files until the table is vacuumed. Raises: JobError."""
    if (found := find_table(folder)) is None:
        return 0
    # In milliseconds.
    newest = dict[str, int]()
    for file in pa.table(found.get_add_actions(flatten=True)).to_pylist():
        ds, added = file["partition.ds"], int(file["modification_time"])
        newest[ds] = max(added, newest.get(ds, 0))
    old = sorted(ds for ds, added in newest.items() if added < before.timestamp() * 1000)
    if old:
        try:
            found.delete(f"ds IN ({', '.join(map(repr, old))})")
        except DeltaError as error:
            raise JobError(f"{folder}: quarantined lines did not expire: {error}; call again") from error
    return len(old)


def examples(batches: Iterable[pa.RecordBatch], most: int = MOST) -> tuple[QuarantinedLine, ...]:
    """Up to `most` quarantined lines: one of each reason, the most frequent first, then a second of each, and so on."""
    counts, kept = defaultdict[str, int](int), defaultdict[str, list[QuarantinedLine]](list)
    for batch in batches:
        for row in batch.select(list(COLUMNS)).to_pylist():
            counts[row["reason"]] += 1
            if len(kept[row["reason"]]) < most:
                kept[row["reason"]].append(QuarantinedLine(row["reason"], row["file"], _shown(row["raw"])))
    by_frequency = [kept[reason] for reason in sorted(counts, key=lambda it: (-counts[it], it))]
    turns = chain.from_iterable(zip_longest(*by_frequency))
    return tuple(islice((line for line in turns if line), most))


def written(table: Location, files: Sequence[FileReport]) -> Iterator[pa.RecordBatch]:
    """Rows of files of the quarantine table, committed or not. Raises: JobError naming one that cannot be read."""
    for report in files:
        yield from shard_files.read_back(join(table, report.path), COLUMNS, report.sha256)


def printable(text: str) -> str:
    """The text in one line, as `\\n` where it holds more."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _shown(raw: bytes) -> str:
    """The beginning of a line. A byte that is no UTF-8 shows as \\xNN."""
    # Four bytes are the longest character: a cut inside one must not show as a damaged byte.
    text = raw[: 4 * (_SHOWN + 1)].decode("utf-8", "backslashreplace")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
