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
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from batch_job import rows
from batch_job.writing import FileReport, Target
from shared_model import settings
from shared_model.errors import JobError, Stale
from shared_model.settings import StateSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCORES = pa.schema([("ds", pa.string()), *rows.SCORES])
QUARANTINE = pa.schema([("ds", pa.string()), *rows.QUARANTINE])

#: Another day's commit makes ours conflict; this many in a row is more than a night has days to commit.
_COMMIT_ATTEMPTS = 100
_READER_VERSION = 1


@dataclass(frozen=True)
class Committed:
    """What the table says of a partition: which attempt and plan produced it, and its rows."""

    token: int
    plan_id: str
    table_version: int
    rows: int


def open_table(folder: Path, schema: pa.Schema) -> DeltaTable:
    """The table, made on first use. Two processes may do so at once."""
    try:
        return DeltaTable(str(folder))
    except TableNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
    # With retries, the slower of two makers would write the table's description again, over the other's first rows.
    once = CommitProperties(max_commit_retries=0)
    try:
        return DeltaTable.create(str(folder), schema=schema, partition_by=["ds"], mode="ignore", commit_properties=once)
    except CommitFailedError:
        return DeltaTable(str(folder))


def committed(table: DeltaTable, ds: str) -> Committed | None:
    """None when the partition was never committed."""
    token = table.transaction_version(_application(ds))
    if token is None:
        return None
    actions = pa.table(table.get_add_actions(flatten=True))
    files = actions.filter(pc.equal(actions["partition.ds"], ds)).select(["path", "num_records"]).to_pylist()
    plan_id = os.path.basename(files[0]["path"]).split(".")[0]
    return Committed(token, plan_id, table.version(), sum(file["num_records"] for file in files))


def last_attempt(folders: Iterable[Path], ds: str) -> int:
    """The largest token these tables know of for a day, -1 if none: the floor of the next, should Redis forget."""
    tables = (DeltaTable(str(folder)) for folder in folders if DeltaTable.is_deltatable(str(folder)))
    tokens = (table.transaction_version(_application(ds)) for table in tables)
    return max((int(token) for token in tokens if token is not None), default=-1)


def replace_partition(
    folder: Path,
    ds: str,
    files: Sequence[FileReport],
    token: int,
    still_ours: Callable[[], None],
    metadata: Mapping[str, Any],
) -> int:
    """Make `files` the partition, in one transaction; returns the table's version.

    Delta's application transaction is no fence by itself: any version, an older one too, is accepted. So each try
    loads the table, refuses a token that is not larger than the committed one, and commits on that very snapshot:
    whatever was committed in between makes it conflict, and the next try sees it.

    Raises: Stale from `still_ours` or from the table.
    """

    def write(table: DeltaTable) -> None:
        still_ours()
        refuse_stale(table, ds, token)
        table.create_write_transaction(
            actions=_actions(ds, files),
            mode="overwrite",
            schema=SCORES,
            partition_by=["ds"],
            partition_filters=[("ds", "=", ds)],
            commit_properties=CommitProperties(
                dict(metadata), max_commit_retries=0, app_transactions=[Transaction(_application(ds), token)]
            ),
        )

    return _commit(folder, SCORES, write)


def refuse_stale(table: DeltaTable, ds: str, token: int) -> None:
    """Raises: Stale unless `token` is larger than the committed one."""
    newest = table.transaction_version(_application(ds))
    if newest is not None and newest >= token:
        raise Stale(f"attempt {newest} at ds={ds} is committed, this is attempt {token}; nothing committed")


def add_quarantined(folder: Path, ds: str, files: Sequence[FileReport], attempt: int) -> int | None:
    """Append an attempt's quarantined lines; returns the version that holds them, None when there are none.

    Attempts do not replace each other's lines: rows carry their attempt, and only the committed one counts.
    """
    if not files:
        return None

    def write(table: DeltaTable) -> None:
        latest = max(attempt, table.transaction_version(_application(ds)) or attempt)
        table.create_write_transaction(
            actions=_actions(ds, files),
            mode="append",
            schema=QUARANTINE,
            partition_by=["ds"],
            commit_properties=CommitProperties(
                max_commit_retries=0, app_transactions=[Transaction(_application(ds), latest)]
            ),
        )

    return _commit(folder, QUARANTINE, write)


def quarantined(folder: Path, ds: str, attempt: int) -> dict[str, int]:
    """Reason → lines that one attempt set aside."""
    counts: dict[str, int] = {}
    if not DeltaTable.is_deltatable(str(folder)):
        return counts
    for batch in read_files(DeltaTable(str(folder)), ds, ["attempt", "reason"]):
        for row in batch.to_pylist():
            if row["attempt"] == attempt:
                counts[row["reason"]] = counts.get(row["reason"], 0) + 1
    return counts


def read_files(table: DeltaTable, ds: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """A partition's rows, without Spark, every page's checksum verified. Raises: JobError naming a damaged file."""
    for uri in table.file_uris(file_pruning_predicate=[("ds", "=", ds)]):
        try:
            with pq.ParquetFile(uri, page_checksum_verification=True) as file:
                yield from file.iter_batches(columns=list(columns))
        except (OSError, pa.ArrowException) as error:
            raise JobError(f"{uri} cannot be read: {str(error).partition(chr(10))[0]}; score ds={ds} again") from error


def remove_litter(target: Target) -> None:
    """Delete an attempt's data files that the table does not hold. Best effort: litter costs disk, not truth."""
    is_table = DeltaTable.is_deltatable(target.table)
    held = {os.path.basename(uri) for uri in DeltaTable(target.table).file_uris()} if is_table else set()
    for path in Path(target.table, f"ds={target.ds}").glob(f"{target.prefix}*"):
        if path.name not in held:
            path.unlink(missing_ok=True)


def read_scores(spark: "SparkSession", table: str | Path | None = None, ds: str | None = None) -> "DataFrame":
    """The committed scores as a Spark DataFrame; of one day, if `ds` is given.

    Spark has no Delta source here, and the folder read as Parquet would show replaced and unfinished rows too.
    `table`: default STATE/scores. Raises: JobError when it is not there or asks for a newer reader.
    """
    folder = str(table or settings.load(StateSettings).scores_table)
    if not DeltaTable.is_deltatable(folder):
        raise JobError(f"{folder} is no scores table; run the nightly job first, or check TANDEM_SCORES")
    delta = DeltaTable(folder)
    _refuse_newer(delta, folder)
    files = delta.file_uris(file_pruning_predicate=[("ds", "=", ds)] if ds else None)
    if not files:
        return spark.createDataFrame([], rows.SCORES_DDL)
    reader = spark.read.schema(rows.SCORES_DDL).option("basePath", folder)
    return reader.option("parquet.page.verify-checksum.enabled", "true").parquet(*files)


def _refuse_newer(table: DeltaTable, folder: str) -> None:
    protocol = table.protocol()
    if protocol.min_reader_version > _READER_VERSION:
        features = ", ".join(protocol.reader_features or []) or "none named"
        raise JobError(
            f"{folder} asks for reader version {protocol.min_reader_version} (features: {features}); "
            f"read_scores reads version {_READER_VERSION}"
        )


def _commit(folder: Path, schema: pa.Schema, write: Callable[[DeltaTable], None]) -> int:
    """Load the table and write to that very snapshot; on a conflict, again. Returns the version written."""
    for _ in range(_COMMIT_ATTEMPTS):
        table = open_table(folder, schema)
        try:
            write(table)
        except CommitFailedError:
            time.sleep(random.uniform(0.01, 0.1))  # noqa: S311 (jitter, not a secret)
            continue
        return int(table.version()) + 1
    raise JobError(f"{folder}: {_COMMIT_ATTEMPTS} commits in a row met another writer; run the partition again")


def _application(ds: str) -> str:
    return f"tandem/{ds}"


def _actions(ds: str, files: Sequence[FileReport]) -> list[AddAction]:
    now = int(time.time() * 1000)
    return [
        AddAction(file.path, file.size, {"ds": ds}, now, True, json.dumps({"numRecords": file.rows})) for file in files
    ]
