"""Compaction: small files of older days are merged, and files that no reader needs are deleted. No Spark, no JVM.

A day is merged in a commit of its own. It changes no row and no attempt's token, and states the facts of the day's
commit again, because the log forgets old commits. Readers of an earlier version go on: its files stay for `KEEP`.
"""

import json
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from batch_job.inputs import delta
from batch_job.progress import log
from batch_job.shards.shard_files import FileReport, Target
from batch_job.tables import merging, resumable, staged, table
from shared_model.errors import JobError
from shared_model.objects import Location, open_objects

#: How long files stay that a version named which is not the newest, and those that none has named.
KEEP = timedelta(seconds=resumable.KEEP_SECONDS)
MOST_BYTES = 128e6

#: Of a commit that merged files and changed no row.
_COMPACTED = "tandem.compacted"
#: The name of a file that Tandem wrote. Others have no hash in theirs, so a merged one would vouch for unknown bytes.
_OURS = re.compile(r"[0-9a-z]+\.[0-9a-z-]+\.\d+\.[0-9a-f]+-[0-9a-f]{16}\.parquet")


@dataclass(frozen=True)
class Figures:
    """`days`: merged, `before` files in them and `after`. `deleted`: files, of `freed` bytes together."""

    days: int = 0
    before: int = 0
    after: int = 0
    deleted: int = 0
    freed: int = 0


@dataclass(frozen=True)
class _Held:
    """A file of the newest version. `modified`: when it was committed, in milliseconds."""

    file: FileReport
    partition: dict[str, str]
    modified: int


@dataclass(frozen=True)
class _Merged:
    """A written file, and those that it replaces."""

    file: FileReport
    replaced: Sequence[_Held]


class _DayChanged(Exception):
    """Another process has replaced files of the day."""


def compact(folder: Location, before: str, most_bytes: float = MOST_BYTES, keep: timedelta = KEEP) -> Figures:
    """Merge the small files of each day before the day `before`, in the scores or the quarantine table, into files of
    at most so many bytes; then delete files that nothing has needed for `keep`, a week or more. A day that another
    process replaces meanwhile is left as it is.

    Raises: JobError naming a damaged file or log, or a file that cannot be written.
    """
    if (found := delta.find_table(folder)) is None:
        return Figures()
    schema, merged = table.QUARANTINE if "attempt" in _columns(found) else table.SCORES, list[tuple[int, int]]()
    # A table of an earlier version gets the columns that it lacks with the next commit of a day.
    if not table.missing_columns(found, schema):
        days = sorted({held.partition["ds"] for held in _files(found)})
        merged = [done for ds in days if ds < before and (done := _merge_day(folder, schema, ds, most_bytes))]
    deleted, freed = _delete_unneeded(folder, keep)
    return Figures(len(merged), sum(it for it, _ in merged), sum(it for _, it in merged), deleted, freed)


def _merge_day(folder: Location, schema: pa.Schema, ds: str, most_bytes: float) -> tuple[int, int] | None:
    """Files of the day before and after; None where they stay."""
    held = [it for it in _files(delta.open_table(folder)) if it.partition["ds"] == ds]
    merged = [_merge(folder, schema, group) for group in _groups(held, most_bytes)]
    if not merged:
        return None

    def write(found: DeltaTable) -> None:
        there = {it.file.path for it in _files(found)}
        if not {it.file.path for each in merged for it in each.replaced} <= there:
            raise _DayChanged
        found.create_write_transaction(
            actions=_actions(merged),
            mode="append",
            schema=schema,
            partition_by=found.metadata().partition_columns,
            commit_properties=CommitProperties(_facts(found, ds), max_commit_retries=0),
        )

    def landed(found: DeltaTable) -> bool:
        return {each.file.path for each in merged} <= {it.file.path for it in _files(found)}

    try:
        table.write_to_snapshot(folder, schema, write, landed)
    except _DayChanged:
        open_objects(folder).delete(*(each.file.path for each in merged))
        return None
    after = len(held) + len(merged) - sum(len(each.replaced) for each in merged)
    log(f"ds={ds}: {len(held):,} files of {folder} merged into {after:,}")
    return len(held), after


def _groups(held: Sequence[_Held], most_bytes: float) -> list[list[_Held]]:
    """Files to merge, of one partition each."""
    small = defaultdict[str, list[_Held]](list)
    for it in sorted(held, key=lambda it: it.file.path):
        if it.file.size <= most_bytes / 2 and _OURS.fullmatch(it.file.name):
            small[it.partition.get("source", "")].append(it)
    cut = [
        (files, group)
        for files in small.values()
        for group in merging.groups([it.file.size for it in files], most_bytes)
    ]
    return [files[group] for files, group in cut if len(files[group]) > 1]


def _merge(folder: Location, schema: pa.Schema, group: Sequence[_Held]) -> _Merged:
    """The name begins as that of the first file does: with the fingerprint and the attempt of the day's commit."""
    fingerprint, _, token, _ = group[0].file.name.split(".", 3)
    partition = group[0].partition
    target = Target(str(folder), partition["ds"], fingerprint, int(token), source=partition.get("source", ""))
    columns = pa.schema([it for it in schema if it.name not in partition])
    return _Merged(merging.merge(target, columns, [it.file for it in group], "merged"), group)


def _actions(merged: Sequence[_Merged]) -> list[AddAction | RemoveAction]:
    """They say that no data changes. A merged file is as old as the newest that it replaces: a drain looks for answers
    of the last hours by that."""
    actions, now = list[AddAction | RemoveAction](), int(time.time() * 1000)
    for each in merged:
        file, partition = each.file, each.replaced[0].partition
        committed, rows = max(it.modified for it in each.replaced), json.dumps({"numRecords": file.rows})
        actions.append(AddAction(file.path, file.size, partition, committed, False, rows))
        actions += [RemoveAction(it.file.path, False, now, it.file.size, partition) for it in each.replaced]
    return actions


def _facts(found: DeltaTable, ds: str) -> dict[str, str]:
    token = table.attempt_of(found, ds)
    facts = table.commit_facts(found, ds, token) if token is not None else {}
    return {**facts, _COMPACTED: ds}


def _delete_unneeded(folder: Location, keep: timedelta) -> tuple[int, int]:
    """Delete files that no version of the last `keep` names, nor a list of scores that wait for a person; how many, and
    their bytes."""
    files = open_objects(folder)
    try:
        hours = int(max(keep, KEEP).total_seconds() // 3600)
        unneeded = delta.open_table(folder).vacuum(hours, dry_run=True, full=True)
    except (OSError, DeltaError) as error:
        raise JobError(f"{folder}: its files could not be listed: {delta.cause(error)}") from error
    there = {it.path: it for it in files.list()}
    # An older list waits for no person any longer, and goes itself.
    waiting = staged.names(folder, (it for path, it in there.items() if path not in unneeded))
    gone = [there[path] for path in unneeded if path in there and path.rpartition("/")[2] not in waiting]
    files.delete(*(it.path for it in gone))
    return len(gone), sum(it.size for it in gone)


def _files(found: DeltaTable) -> list[_Held]:
    actions = pa.table(found.get_add_actions(flatten=True))
    columns = {name: f"partition.{name}" for name in found.metadata().partition_columns}
    rows = actions.select(["path", "size_bytes", "num_records", "modification_time", *columns.values()]).to_pylist()
    return [
        _Held(
            FileReport(row["path"], row["size_bytes"], row["num_records"] or 0),
            {name: row[column] for name, column in columns.items()},
            row["modification_time"],
        )
        for row in rows
    ]


def _columns(found: DeltaTable) -> set[str]:
    return {field.name for field in found.schema().fields}
