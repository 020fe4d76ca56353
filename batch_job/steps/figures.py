"""Figures and verdicts of the default model's nights, left in Redis for the online service's metrics and SLA board."""

import json
from datetime import UTC, datetime

import redis

from batch_job.identity import model_of
from batch_job.progress import log
from batch_job.run_record import Findings, RunRecord
from shared_model.errors import StoreUnavailable
from shared_model.published.epochs import Epoch
from shared_model.redis_store import keys

#: Nights that the SLA board lists.
_RECENT_RUNS = 10


def tell_verdicts(client: "redis.Redis", run: RunRecord, findings: Findings) -> None:
    """The outcome of each gate, `accepted` where a person lets a failure pass. A day is judged without Redis, too."""
    if model_of(run.input.identity):
        return
    outcomes = {it.gate: "accepted" if it.accepted else str(it.outcome) for it in findings.verdicts}
    try:
        client.set(keys.last_verdicts(), json.dumps({"ds": run.ds, "outcomes": outcomes}))
    except redis.RedisError as error:
        log(f"the verdicts on ds={run.ds} are in no metric: {error}")


def tell_published(client: "redis.Redis", run: RunRecord, epoch: Epoch) -> None:
    """The figures of a run that has published. Raises: StoreUnavailable."""
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
        with client.pipeline() as pipe:
            pipe.set(keys.last_run(), json.dumps(figures))
            pipe.lpush(keys.recent_runs(), json.dumps(figures))
            pipe.ltrim(keys.recent_runs(), 0, _RECENT_RUNS - 1)
            pipe.execute()
    except redis.RedisError as error:
        raise StoreUnavailable(f"ds={run.ds} is published, but its figures are not: {error}") from error
