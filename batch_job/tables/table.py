"""The scores table and the quarantine table (Delta): the rule by which a partition is replaced, and reading it back."""

import json
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from batch_job import identity
from batch_job.identity import Tables
from batch_job.inputs import delta, frames
from batch_job.progress import log
from batch_job.shards import schemas, shard_files
from batch_job.shards.shard_files import FileReport
from shared_model import settings
from shared_model.errors import JobError, Stale
from shared_model.settings import StateSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCORES = pa.schema([("ds", pa.string()), ("source", pa.string()), *schemas.SCORES])
QUARANTINE = pa.schema([("ds", pa.string()), *schemas.QUARANTINE])

#: Of a commit: the identity of the input that its rows are of.
INPUT = "tandem.input"
#: Another day's commit makes ours conflict; this many in a row is more than a night has days to commit.
_COMMIT_ATTEMPTS = 100


@dataclass(frozen=True)
class Committed:
    """The attempt and the input fingerprint of a partition's archive rows, and how many rows there are."""

    token: int
    fingerprint: str
    table_version: int
    rows: int


def open_table(folder: Path, schema: pa.Schema) -> DeltaTable:
    """The table, made on first use. Two processes may do so at once.

    Raises: JobError as `delta.find_table`, and where none can be made.
    """
    if found := delta.find_table(folder):
        return found
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
    token = table.transaction_version(_application(ds))
    if token is None:
        return None
    actions = pa.table(table.get_add_actions(flatten=True))
    archive = pc.and_(pc.equal(actions["partition.ds"], ds), pc.equal(actions["partition.source"], schemas.ARCHIVE))
    files = actions.filter(archive).select(["path", "num_records"]).to_pylist()
    fingerprint = os.path.basename(files[0]["path"]).split(".")[0]
    return Committed(token, fingerprint, table.version(), sum(file["num_records"] for file in files))


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
    return bool(table.file_uris(file_pruning_predicate=_partition_filter(ds, None)))


def last_attempt(folders: Iterable[Path], ds: str) -> int:
    """The largest token these tables know of for a day, -1 if none: the floor of the next, should Redis forget."""
    tables = (delta.find_table(folder) for folder in folders)
    tokens = (table.transaction_version(_application(ds)) for table in tables if table)
    return max((int(token) for token in tokens if token is not None), default=-1)


def replace_partition(
    folder: Path,
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
        still_ours()
        refuse_earlier(table)
        refuse_stale(table, ds, token)
        if mine := metadata.get(INPUT):
            refuse_other_input(table, ds, mine)
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

    return _commit(folder, SCORES, write)


def add_deferred(folder: Path, ds: str, write_new: Callable[[DeltaTable], FileReport | None]) -> None:
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

    _commit(folder, SCORES, write)


def _add_missing_columns(table: DeltaTable) -> None:
    """Give a scores table of an earlier version the columns, and the fields of columns, that it lacks, null in the rows
    that it holds. A transaction that overwrites a partition does so itself, one that appends does not. Raises:
    CommitFailedError on a conflict."""
    held = {column.name: column.type for column in table.schema().fields}
    # A column whose type has more fields than it had is added too, which adds those.
    if missing := [it for it in Schema.from_arrow(SCORES).fields if held.get(it.name) != it.type]:
        table.alter.add_columns(missing, commit_properties=CommitProperties(max_commit_retries=0))


def refuse_earlier(table: DeltaTable) -> None:
    """Raises: JobError unless the scores table is partitioned as this version writes it."""
    if table.metadata().partition_columns != _partitions(SCORES):
        raise JobError(
            f"{table.table_uri} is a scores table of an earlier version, without the column `source`; "
            "move it away and score its days again"
        )


def refuse_stale(table: DeltaTable, ds: str, token: int) -> None:
    """Raises: Stale unless `token` is larger than the committed one."""
    newest = table.transaction_version(_application(ds))
    if newest is not None and newest >= token:
        raise Stale(f"attempt {newest} at ds={ds} is committed, this is attempt {token}; nothing committed")


def add_quarantined(folder: Path, ds: str, files: Sequence[FileReport], attempt: int) -> int | None:
    """Append an attempt's quarantined lines; returns the version that holds them, None without files.

    Attempts do not replace each other's lines: rows carry their attempt, and only the committed one counts.
    """
    if not files:
        return None

    def write(table: DeltaTable) -> None:
        latest = max(attempt, table.transaction_version(_application(ds)) or attempt)
        table.create_write_transaction(
            actions=_actions({"ds": ds}, files),
            mode="append",
            schema=QUARANTINE,
            partition_by=["ds"],
            commit_properties=CommitProperties(
                max_commit_retries=0, app_transactions=[Transaction(_application(ds), latest)]
            ),
        )

    return _commit(folder, QUARANTINE, write)


def quarantined(folder: Path, ds: str, attempt: int) -> dict[str, int]:
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
    for uri in table.file_uris(file_pruning_predicate=_partition_filter(ds, source)):
        yield from _read(uri, columns, f"score ds={ds} again")


def warn_unchecked(table: DeltaTable, ds: str | None, source: str | None = None) -> None:
    """Log in one line how many files have no hash in their names, so that damage to them may go unnoticed."""
    files = table.file_uris(file_pruning_predicate=_partition_filter(ds, source))
    if count := sum(not shard_files.has_hash_in_name(file) for file in files):
        these = f"{count} of {len(files)} files of {table.table_uri}"
        log(f"unchecked: {these} have no hash in their names: damage to them may go unnoticed")


def read_recent(table: DeltaTable, since: int, columns: Sequence[str], source: str) -> Iterator[pa.RecordBatch]:
    """The same of all days, of files committed at `since`, a Unix time in milliseconds, or later."""
    actions = pa.table(table.get_add_actions(flatten=True)).select(["path", "modification_time"]).to_pylist()
    recent = {os.path.basename(file["path"]) for file in actions if file["modification_time"] >= since}
    for uri in table.file_uris(file_pruning_predicate=_partition_filter(None, source)):
        if os.path.basename(uri) in recent:
            yield from _read(uri, columns, "restore it")


def ever_held(folder: Path) -> tuple[set[str], float]:
    """Names of the files that any version of the table holds, and the Unix time since when that is all of them: a table
    forgets its early versions, and those files are for `vacuum` to delete."""
    log = sorted((folder / "_delta_log").glob("*.json"))
    held = {os.path.basename(uri) for uri in delta.open_table(folder).file_uris()}
    for version in log:
        try:
            actions = [json.loads(line) for line in version.read_text().splitlines()]
        except (OSError, ValueError) as error:
            # deltalake reads no version that a checkpoint covers, so damage to one is found here.
            raise JobError(f"{version} cannot be read: {error}; restore it") from error
        held.update(os.path.basename(action["add"]["path"]) for action in actions if "add" in action)
    remembers_all = int(log[0].stem) == 0
    return held, 0.0 if remembers_all else log[0].stat().st_mtime


def read_scores(
    spark: "SparkSession",
    table: str | Path | None = None,
    ds: str | None = None,
    source: str | None = None,
    verify: bool = True,
) -> "DataFrame":
    """The committed scores as a Spark DataFrame; of one day and of one source, `archive` or `deferred`, where given.

    Spark has no Delta source here, and the folder read as Parquet would show replaced and unfinished rows too.
    `table`: default that of the input which the environment sets, STATE/scores without. `verify`: executors first hold
    every file against the hash in its name, which page checksums, checked in any case, leave little to find; where
    names have none, one line on standard error says so.
    Raises: JobError when a file is damaged, when the table is not there or asks for a newer reader.
    """
    if table is None:
        state = settings.load(StateSettings)
        table = Tables.for_input(state, identity.configured_input(state)).scores
    folder = str(table)
    if (found := delta.find_table(folder)) is None:
        raise JobError(f"{folder} is no scores table; run the nightly job first, or check TANDEM_SCORES")
    refuse_earlier(found)
    files = found.file_uris(file_pruning_predicate=_partition_filter(ds, source))
    if not files:
        return spark.createDataFrame([], schemas.SCORES_DDL)
    if verify:
        _refuse_damaged(spark, files)
        warn_unchecked(found, ds, source)
    return frames.parquet_files(spark, schemas.SCORES_DDL, folder, files)


def _refuse_damaged(spark: "SparkSession", files: Sequence[str]) -> None:
    """Hold every file against the hash in its name, in Spark's JVM: a reader's Python workers may lack our packages."""
    if not (named := [file for file in files if shard_files.has_hash_in_name(file)]):
        return
    damaged = frames.files_with_another_hash(spark, named, shard_files.NAMED_HASH).collect()
    if damaged:
        first = damaged[0].path.removeprefix("file:")
        raise JobError(f"{first} is not as it was written, one of {len(damaged)} such files; score the day again")


def _commit(folder: Path, schema: pa.Schema, write: Callable[[DeltaTable], None]) -> int:
    """Load the table and write to that very snapshot; on a conflict, again. Returns the version written."""
    for _ in range(_COMMIT_ATTEMPTS):
        table = open_table(folder, schema)
        try:
            write(table)
        except CommitFailedError:
            time.sleep(random.uniform(0.01, 0.1))  # noqa: S311 (jitter, not a secret)
            continue
        except (OSError, DeltaError) as error:
            raise JobError(f"{folder}: nothing committed: {delta.cause(error)}") from error
        return int(table.version()) + 1
    raise JobError(f"{folder}: {_COMMIT_ATTEMPTS} commits in a row met another writer; run the partition again")


def _read(uri: str, columns: Sequence[str], remedy: str) -> Iterator[pa.RecordBatch]:
    try:
        if not shard_files.is_intact(uri):
            raise JobError(f"{uri} cannot be read: it is not as it was written; {remedy}")
        with pq.ParquetFile(uri, page_checksum_verification=True) as file:
            yield from shard_files.in_columns(file, columns)
    except (OSError, pa.ArrowException) as error:
        raise JobError(f"{uri} cannot be read: {str(error).partition(chr(10))[0]}; {remedy}") from error


def _partitions(schema: pa.Schema) -> list[str]:
    return [column for column in ("ds", "source") if column in schema.names]


def _partition_filter(ds: str | None, source: str | None) -> list[tuple[str, str, str]] | None:
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
