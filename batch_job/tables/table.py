"""The scores table and the quarantine table (Delta): the rule by which a partition is replaced, and reading it back."""

import json
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from batch_job.inputs import delta
from batch_job.progress import log
from batch_job.shards import schemas, shard_files
from batch_job.shards.shard_files import FileReport
from shared_model.errors import JobError, Stale
from shared_model.objects import Location, is_url, open_objects

SCORES = pa.schema([("ds", pa.string()), ("source", pa.string()), *schemas.SCORES])
QUARANTINE = pa.schema([("ds", pa.string()), *schemas.QUARANTINE])

#: Of a commit: the identity of the input that its rows are of.
INPUT = "tandem.input"
#: Another day's commit makes ours conflict; this many in a row is more than a night has days to commit.
_COMMIT_ATTEMPTS = 100
#: Commits in which the service behind a URL may fail; it was asked several times in each.
_SERVICE_FAILURES = 3


@dataclass(frozen=True)
class Committed:
    """The attempt and the input fingerprint of a partition's archive rows, and how many rows there are."""

    token: int
    fingerprint: str
    table_version: int
    rows: int


def open_table(folder: Location, schema: pa.Schema) -> DeltaTable:
    """The table, made on first use. Two processes may do so at once.

    Raises: JobError as `delta.find_table`, and where none can be made.
    """
    if found := delta.find_table(folder):
        return found
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)
    # With retries, the slower of two makers would write the table's description again, over the other's first rows.
    once, by = CommitProperties(max_commit_retries=0), _partitions(schema)
    try:
        return DeltaTable.create(str(folder), schema=schema, partition_by=by, mode="ignore", commit_properties=once)
    except CommitFailedError:
        return delta.open_table(folder)
    except (OSError, DeltaError) as error:
        raise JobError(f"{folder}: no table could be made: {delta.cause(error)}") from error


def committed(table: DeltaTable, ds: str) -> Committed | None:
    """None when the partition was never committed. Raises: JobError when the table is of an earlier version."""
    refuse_earlier(table)
    if (token := attempt_of(table, ds)) is None:
        return None
    actions = pa.table(table.get_add_actions(flatten=True))
    archive = pc.and_(pc.equal(actions["partition.ds"], ds), pc.equal(actions["partition.source"], schemas.ARCHIVE))
    files = actions.filter(archive).select(["path", "num_records"]).to_pylist()
    fingerprint = os.path.basename(files[0]["path"]).split(".")[0]
    return Committed(token, fingerprint, table.version(), sum(file["num_records"] for file in files))


def attempt_of(table: DeltaTable, ds: str) -> int | None:
    """The token of the attempt that committed a day last; None when none has."""
    token = table.transaction_version(_application(ds))
    return None if token is None else int(token)


def commit_facts(table: DeltaTable, ds: str, token: int) -> dict[str, str]:
    """The facts that attempt `token` committed with a day, `tandem.…` → text; empty once the log has forgotten."""
    mine = {"tandem.ds": ds, "tandem.attempt": str(token)}
    for commit in table.history():
        if mine.items() <= commit.items():
            return {name: str(value) for name, value in commit.items() if name.startswith("tandem.")}
    return {}


def inputs(table: DeltaTable) -> dict[str, str]:
    """Committed day → the identity of its input. Days of earlier versions and those that the log has forgotten are not
    in it."""
    found: dict[str, str] = {}
    # The newest commit comes first.
    for commit in table.history():
        if ds := commit.get("tandem.ds"):
            found.setdefault(ds, str(commit.get(INPUT, "")))
    return {ds: name for ds, name in found.items() if name}


def refuse_other_input(table: DeltaTable, ds: str, wanted: str) -> None:
    """Raises: JobError when the committed day is known to be of another input."""
    held = inputs(table).get(ds, wanted)
    if held != wanted:
        raise JobError(
            f"{table.table_uri} holds ds={ds} of {held}, which scores of {wanted} must not replace; nothing was "
            "committed: name another table by TANDEM_SCORES, or unset it: then each input has its own"
        )


def holds(table: DeltaTable, ds: str) -> bool:
    """Whether the table holds rows of a day. Raises: JobError when the table is of an earlier version."""
    refuse_earlier(table)
    return bool(table.file_uris(file_pruning_predicate=partition_filter(ds, None)))


def last_attempt(folders: Iterable[Location], ds: str) -> int:
    """The largest token these tables know of for a day, -1 if none: the floor of the next, should Redis forget."""
    tables = (delta.find_table(folder) for folder in folders)
    tokens = (attempt_of(table, ds) for table in tables if table)
    return max((token for token in tokens if token is not None), default=-1)


def replace_partition(
    folder: Location,
    ds: str,
    files: Sequence[FileReport],
    token: int,
    still_ours: Callable[[], None],
    metadata: Mapping[str, Any],
) -> int:
    """Make `files` the partition's archive rows, in one transaction; returns the table's version.

    Delta's application transaction is no fence by itself: any version, an older one too, is accepted. So each try
    loads the table, refuses a token that is not larger than the committed one, and commits on that very snapshot:
    whatever was committed in between makes it conflict, and the next try sees it.

    Raises: Stale from `still_ours` or from the table; JobError when the day is another input's.
    """

    archive = {"ds": ds, "source": schemas.ARCHIVE}

    def write(table: DeltaTable) -> None:
        nonlocal files
        still_ours()
        refuse_earlier(table)
        refuse_stale(table, ds, token)
        if mine := metadata.get(INPUT):
            refuse_other_input(table, ds, mine)
        # One commit must not remove and add the same file: of an adopted one that its writer has committed meanwhile.
        held = _names(table)
        files = [shard_files.copied(str(folder), it, token) if it.name in held else it for it in files]
        table.create_write_transaction(
            actions=_actions(archive, files),
            mode="overwrite",
            schema=SCORES,
            partition_by=list(archive),
            partition_filters=[(column, "=", value) for column, value in archive.items()],
            commit_properties=CommitProperties(
                dict(metadata), max_commit_retries=0, app_transactions=[Transaction(_application(ds), token)]
            ),
        )

    def landed(table: DeltaTable) -> bool:
        return attempt_of(table, ds) == token and _holds_files(table, files)

    return write_to_snapshot(folder, SCORES, write, landed)


def add_deferred(folder: Location, ds: str, write_new: Callable[[DeltaTable], FileReport | None]) -> None:
    """Append answers to deferred requests to a day, in one transaction, beside its archive rows.

    `write_new` writes those that the snapshot it is given does not hold: it is called again where another commit came
    in between, so of two drains that answer the same request at once one commits its rows.
    """
    deferred = {"ds": ds, "source": schemas.DEFERRED}

    def write(table: DeltaTable) -> None:
        refuse_earlier(table)
        if file := write_new(table):
            _add_missing_columns(table)
            table.create_write_transaction(
                actions=_actions(deferred, [file]),
                mode="append",
                schema=SCORES,
                partition_by=list(deferred),
                commit_properties=CommitProperties(max_commit_retries=0),
            )

    write_to_snapshot(folder, SCORES, write)


def _add_missing_columns(table: DeltaTable) -> None:
    """Give a scores table of an earlier version the columns, and the fields of columns, that it lacks, null in the rows
    that it holds. A transaction that overwrites a partition does so itself, one that appends does not. Raises:
    CommitFailedError on a conflict."""
    if missing := missing_columns(table, SCORES):
        table.alter.add_columns(missing, commit_properties=CommitProperties(max_commit_retries=0))


def missing_columns(table: DeltaTable, schema: pa.Schema) -> list[Field]:
    """Columns of this version that a table lacks, or that have more fields by now: adding those adds the fields."""
    held = {column.name: column.type for column in table.schema().fields}
    return [it for it in Schema.from_arrow(schema).fields if held.get(it.name) != it.type]


def refuse_earlier(table: DeltaTable) -> None:
    """Raises: JobError unless the scores table is partitioned as this version writes it."""
    if table.metadata().partition_columns != _partitions(SCORES):
        raise JobError(
            f"{table.table_uri} is a scores table of an earlier version, without the column `source`; "
            "move it away and score its days again"
        )


def refuse_stale(table: DeltaTable, ds: str, token: int) -> None:
    """Raises: Stale unless `token` is larger than the committed one."""
    newest = attempt_of(table, ds)
    if newest is not None and newest >= token:
        raise Stale(f"attempt {newest} at ds={ds} is committed, this is attempt {token}; nothing committed")


def add_quarantined(folder: Location, ds: str, files: Sequence[FileReport], attempt: int) -> int | None:
    """Append an attempt's quarantined lines; returns the version that holds them, None without files.

    Attempts do not replace each other's lines: rows carry their attempt, and only the committed one counts.
    """
    if not files:
        return None

    def write(table: DeltaTable) -> None:
        latest = max(attempt, attempt_of(table, ds) or attempt)
        table.create_write_transaction(
            actions=_actions({"ds": ds}, files),
            mode="append",
            schema=QUARANTINE,
            partition_by=["ds"],
            commit_properties=CommitProperties(
                max_commit_retries=0, app_transactions=[Transaction(_application(ds), latest)]
            ),
        )

    return write_to_snapshot(folder, QUARANTINE, write, partial(_holds_files, files=files))


def quarantined(folder: Location, ds: str, attempt: int) -> dict[str, int]:
    """Reason → lines that one attempt quarantined."""
    counts: dict[str, int] = {}
    if (table := delta.find_table(folder)) is None:
        return counts
    for batch in read_files(table, ds, ["attempt", "reason"]):
        for row in batch.to_pylist():
            if row["attempt"] == attempt:
                counts[row["reason"]] = counts.get(row["reason"], 0) + 1
    return counts


def read_files(table: DeltaTable, ds: str, columns: Sequence[str], source: str = "") -> Iterator[pa.RecordBatch]:
    """A day's rows, of one source if given, without Spark, every page's checksum verified.

    Raises: JobError naming a damaged file.
    """
    for uri in table.file_uris(file_pruning_predicate=partition_filter(ds, source)):
        yield from read_file(uri, columns, f"score ds={ds} again")


def warn_unchecked(table: DeltaTable, ds: str | None, source: str | None = None) -> None:
    """Log in one line how many files have no hash in their names, so that damage to them may go unnoticed."""
    files = table.file_uris(file_pruning_predicate=partition_filter(ds, source))
    if count := sum(not shard_files.has_hash_in_name(file) for file in files):
        these = f"{count} of {len(files)} files of {table.table_uri}"
        log(f"unchecked: {these} have no hash in their names: damage to them may go unnoticed")


def read_recent(table: DeltaTable, since: int, columns: Sequence[str], source: str) -> Iterator[pa.RecordBatch]:
    """The same of all days, of files committed at `since`, a Unix time in milliseconds, or later."""
    actions = pa.table(table.get_add_actions(flatten=True)).select(["path", "modification_time"]).to_pylist()
    recent = {os.path.basename(file["path"]) for file in actions if file["modification_time"] >= since}
    for uri in table.file_uris(file_pruning_predicate=partition_filter(None, source)):
        if os.path.basename(uri) in recent:
            yield from read_file(uri, columns, "restore it")


def ever_held(folder: Location) -> tuple[set[str], float]:
    """Names of the files that any version of the table holds, and the Unix time since when that is all of them: a table
    forgets its early versions, and those files are for `vacuum` to delete."""
    files = open_objects(folder)
    versions = sorted((it for it in files.list("_delta_log") if it.path.endswith(".json")), key=lambda it: it.path)
    held = {os.path.basename(uri) for uri in delta.open_table(folder).file_uris()}
    for version in versions:
        try:
            actions = [json.loads(line) for line in files.get(version.path).splitlines()]
        except (OSError, ValueError) as error:
            # deltalake reads no version that a checkpoint covers, so damage to one is found here.
            raise JobError(f"{folder}/{version.path} cannot be read: {error}; restore it") from error
        held.update(os.path.basename(action["add"]["path"]) for action in actions if "add" in action)
    oldest = versions[0]
    remembers_all = int(Path(oldest.path).stem) == 0
    return held, 0.0 if remembers_all else oldest.modified.timestamp()


def write_to_snapshot(
    folder: Location,
    schema: pa.Schema,
    write: Callable[[DeltaTable], None],
    landed: Callable[[DeltaTable], bool] = lambda _: False,
) -> int:
    """Load the table and write to that very snapshot; on a conflict, again. Returns the version written.

    `landed`: whether a snapshot holds what was written: the answer to a put may be lost, and the commit be there.
    """
    failures = 0
    for attempt in range(_COMMIT_ATTEMPTS):
        table = open_table(folder, schema)
        if attempt and landed(table):
            return int(table.version())
        try:
            write(table)
            return int(table.version()) + 1
        except CommitFailedError:
            pass
        except (OSError, DeltaError) as error:
            failures += 1
            if not is_url(folder) or failures == _SERVICE_FAILURES:
                raise JobError(f"{folder}: nothing committed: {delta.cause(error)}") from None
        time.sleep(random.uniform(0.01, 0.1))  # noqa: S311 (jitter, not a secret)
    raise JobError(f"{folder}: {_COMMIT_ATTEMPTS} commits in a row met another writer; run the partition again")


def _holds_files(table: DeltaTable, files: Sequence[FileReport]) -> bool:
    return {file.name for file in files} <= _names(table)


def _names(table: DeltaTable) -> set[str]:
    """Of the files of a version."""
    return {shard_files.name_of(uri) for uri in table.file_uris()}


def read_file(uri: str, columns: Sequence[str], remedy: str) -> Iterator[pa.RecordBatch]:
    """Rows of a file, every page's checksum and the hash in its name verified. Raises: JobError naming it."""
    try:
        if (raw := shard_files.open_intact(uri)) is None:
            raise JobError(f"{uri} cannot be read: it is not as it was written; {remedy}")
        with raw, pq.ParquetFile(raw, page_checksum_verification=True) as file:
            yield from shard_files.in_columns(file, columns)
    except (OSError, pa.ArrowException) as error:
        raise JobError(f"{uri} cannot be read: {str(error).partition(chr(10))[0]}; {remedy}") from error


def _partitions(schema: pa.Schema) -> list[str]:
    return [column for column in ("ds", "source") if column in schema.names]


def partition_filter(ds: str | None, source: str | None) -> list[tuple[str, str, str]] | None:
    """A filter that prunes files to a day and a source, where they are given."""
    wanted = {"ds": ds, "source": source}
    return [(column, "=", value) for column, value in wanted.items() if value] or None


def _application(ds: str) -> str:
    return f"tandem/{ds}"


def _actions(partition: dict[str, str], files: Sequence[FileReport]) -> list[AddAction]:
    now = int(time.time() * 1000)
    counts = (json.dumps({"numRecords": file.rows}) for file in files)
    return [
        AddAction(file.path, file.size, partition, now, True, count) for file, count in zip(files, counts, strict=True)
    ]
