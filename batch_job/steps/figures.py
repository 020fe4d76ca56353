"""Figures and verdicts of nights, left in Redis for the online service's metrics and SLA board.

Metrics are those of the default model's nights.
"""

import json
from datetime import UTC, datetime

import redis

from batch_job.identity import model_of
from batch_job.progress import log
from batch_job.run_record import Findings, RunRecord
from shared_model.errors import StoreUnavailable
from shared_model.published.epochs import Epoch
from shared_model.redis_store import keys

#: Runs that the SLA board lists, of all models.
_RECENT_RUNS = 20


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
    figures = {**_figures(run), "release": epoch.release, "precision": epoch.precision}
    try:
        client.set(keys.last_run(), json.dumps(figures))
    except redis.RedisError as error:
        raise StoreUnavailable(f"ds={run.ds} is published, but its figures are not: {error}") from error


def tell_state(client: "redis.Redis", run: RunRecord) -> None:
    """The status of a run of any model, for the board's list, which holds each run once. A run is reported without
    Redis, too."""
    told = {**_figures(run), "model": model_of(run.input.identity), "state": str(run.state)}

    def add(pipe: "redis.client.Pipeline") -> None:
        listed = [json.loads(it) for it in pipe.lrange(keys.recent_runs(), 0, -1)]
        own = [it for it in listed if all(it.get(name) == told[name] for name in ("ds", "run_id", "model"))]
        if any(it.get("state") == told["state"] for it in own):
            # It is printed again: it keeps its place and time.
            return
        kept = [told, *(it for it in listed if it not in own)][:_RECENT_RUNS]
        pipe.multi()
        pipe.delete(keys.recent_runs())
        pipe.rpush(keys.recent_runs(), *map(json.dumps, kept))

    try:
        client.transaction(add, keys.recent_runs())
    except redis.RedisError as error:
        log(f"run {run.run_id} of ds={run.ds} is not on the SLA board: {error}")


def _figures(run: RunRecord) -> dict[str, object]:
    findings = run.scoring or run.findings
    return {
        "ds": run.ds,
        "run_id": run.run_id,
        "release": run.release,
        "rows": run.scoring.rows if run.scoring else 0,
        "rows_per_second": run.scoring.rows_per_second if run.scoring else 0.0,
        "quarantined": sum(findings.quarantined.values()) if findings else 0,
        "finished_at": datetime.now(UTC).timestamp(),
    }
