"""The `publish` step: the committed partition → Redis, as an epoch the online service answers from. No JVM."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import redis
from deltalake import DeltaTable

from batch_job import table
from batch_job.record import Publication, RunRecord, State
from protos.scoring.v1.storage_pb2 import PublishedScore
from shared_model import keys
from shared_model.errors import JobError, StoreUnavailable
from shared_model.output import Output
from shared_model.releases.store import Store
from shared_model.scorestore.publish import Epoch, live_keys, publish
from shared_model.settings import StateSettings

_COLUMNS = ("release", "precision", "encoding_key", "tokens", "truncated", "top_k", "vector")


@dataclass(frozen=True)
class Partition:
    """A committed partition, ready to be published."""

    epoch: Epoch
    rows: pa.Table


def publish_run(state: StateSettings, client: "redis.Redis", run: RunRecord) -> RunRecord:
    """Publish what the table holds for the run's day. Publishing again what is live changes nothing.

    Raises: JobError when there is nothing to publish, StoreUnavailable when Redis fails.
    """
    if run.scoring is None:
        raise JobError(f"run {run.run_id} of ds={run.ds} is {run.state}: nothing was committed; score it first")
    partition = committed_partition(state.scores_table, run.ds)
    if partition is None:
        return replace(run, state=State.PUBLISHED, publication=Publication("", 0, moved=False, live=False))
    standing = live_keys(client, partition.epoch)
    if standing is not None:
        publication = Publication(partition.epoch.name, standing, moved=False, live=True)
        return replace(run, state=State.PUBLISHED, publication=publication)
    output = Store.of(state).open(partition.epoch.release).output
    published = publish(client, partition.epoch, scores_of(partition.rows, output))
    publication = Publication(published.epoch, published.keys, moved=published.advanced, live=published.live)
    if published.advanced:
        _tell_service(client, run, partition.epoch)
    return replace(run, state=State.PUBLISHED, publication=publication)


def committed_partition(folder: Path, ds: str) -> Partition | None:
    """None when the committed partition holds no rows. Raises: JobError when the day was never committed."""
    if not DeltaTable.is_deltatable(str(folder)) or (standing := table.committed(DeltaTable(str(folder)), ds)) is None:
        raise JobError(f"{folder} holds no ds={ds}; score it first")
    batches = list(table.read_files(DeltaTable(str(folder)), ds, _COLUMNS))
    rows = pa.Table.from_batches(batches) if batches else None
    if rows is None or not rows.num_rows:
        return None
    release, precision = (_only(rows, name, ds) for name in ("release", "precision"))
    return Partition(Epoch(release, precision, ds, standing.token), rows)


def _only(rows: pa.Table, column: str, ds: str) -> str:
    values = rows.column(column).unique().to_pylist()
    if len(values) > 1:
        raise JobError(f"ds={ds} holds scores of {column} {' and '.join(map(str, values))}; score it again")
    return str(values[0])


def scores_of(rows: pa.Table, output: Output) -> Iterator[tuple[bytes, PublishedScore]]:
    """Encoding key and score of each committed row."""
    index = {name: number for number, name in enumerate(output.names)}
    for batch in rows.to_batches():
        for row in batch.to_pylist():
            score = PublishedScore(tokens=row["tokens"], truncated=row["truncated"])
            score.labels.extend(index[best["label"]] for best in row["top_k"])
            score.scores.extend(row["vector"] or [best["score"] for best in row["top_k"]])
            yield row["encoding_key"], score


def _tell_service(client: "redis.Redis", run: RunRecord, epoch: Epoch) -> None:
    """Leave the run's figures where the online service's metrics find them."""
    figures = {
        "ds": run.ds,
        "run_id": run.run_id,
        "release": epoch.release,
        "precision": epoch.precision,
        "rows": run.scoring.rows if run.scoring else 0,
        "rows_per_second": run.scoring.rows_per_second if run.scoring else 0.0,
        "quarantined": sum(run.scoring.quarantined.values()) if run.scoring else 0,
        "finished_at": datetime.now(UTC).timestamp(),
    }
    try:
        client.set(keys.last_run(), json.dumps(figures))
    except redis.RedisError as error:
        raise StoreUnavailable(f"ds={run.ds} is published, but its figures are not: {error}") from error
