"""Answers to deferred requests in the scores table: looked up among a day's rows, and committed beside them."""

import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from batch_job.inputs.delta import find_table
from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport, Target, write_file
from batch_job.tables import resumable, table
from shared_model.objects import Location

#: A row of the scores table, without its partition columns.
Row = dict[str, Any]

_NUMBERED = re.compile(r"#\d+\Z")


def row_id(request_id: str, position: int, texts: int) -> str:
    """The id of a request's row: the request's own where it holds one text, else with the text's position, from 0.

    No two texts of any requests share one.
    """
    if texts == 1 and not _NUMBERED.search(request_id):
        return request_id
    return f"{request_id}#{position}"


@dataclass(frozen=True)
class DeferredScores:
    """Day `ds` of the scores table in `folder`, as a drain reads and writes it.

    `unfinished_seconds`: how long a request may be unfinished. A run that died had committed a request's rows at most
    that long ago, whichever day it worked on, and in one of the `others` if that was a day of another input.
    """

    folder: Location
    ds: str
    unfinished_seconds: int
    others: tuple[Location, ...] = ()

    def scored(self, keys: Collection[bytes], precisions: Collection[str]) -> dict[bytes, Row]:
        """The day's scores of these encoding keys, of whatever source, at one of these precisions. A key names its
        release."""
        if (delta := find_table(self.folder)) is None:
            return {}
        wanted, good = pa.array(keys, pa.binary()), pa.array(precisions, pa.string())
        table.refuse_earlier(delta)
        found: dict[bytes, Row] = {}
        for batch in table.read_files(delta, self.ds, schemas.SCORES.names):
            same = pc.and_(pc.is_in(batch["encoding_key"], wanted), pc.is_in(batch["precision"], good))
            found.update((row["encoding_key"], row) for row in batch.filter(same).to_pylist())
        return found

    def commit(self, answers: Sequence[Row]) -> list[Row]:
        """Commit these rows, but those whose request and text are committed; returns what is, in the same order.

        Raises: JobError when the table is of an earlier version, or a file of it is damaged.
        """
        target = Target(str(self.folder), self.ds, "deferred", 0, source=schemas.DEFERRED)
        committed: dict[tuple[str, str], Row] = {}

        def write_new(delta: DeltaTable) -> FileReport | None:
            committed.update((_name(row), row) for row in self._recent(delta, [row["id"] for row in answers]))
            new = [row for row in answers if _name(row) not in committed]
            if not new:
                return None
            columns = {name: [row[name] for row in new] for name in schemas.SCORES.names}
            batch = pa.RecordBatch.from_pydict(columns, schema=schemas.SCORES)
            return FileReport(*write_file(target, schemas.SCORES, [batch]))

        try:
            table.add_deferred(self.folder, self.ds, write_new)
        finally:
            # Files written for a snapshot that was no longer the newest.
            resumable.remove_own(target)
        return [committed.get(_name(row), row) for row in answers]

    def _recent(self, delta: DeltaTable, ids: Sequence[str]) -> Iterable[Row]:
        """Deferred rows of these ids that were committed while a request may have been unfinished since."""
        since = int((time.time() - self.unfinished_seconds) * 1000)
        wanted = pa.array(ids, pa.string())
        others = [found for folder in self.others if (found := find_table(folder))]
        for each in (*others, delta):
            for batch in table.read_recent(each, since, schemas.SCORES.names, schemas.DEFERRED):
                yield from batch.filter(pc.is_in(batch["id"], wanted)).to_pylist()


def _name(row: Row) -> tuple[str, str]:
    """The key that is committed once: a finished and forgotten id may come again, for another text."""
    return row["id"], row["text_hash"]
