"""A day that is committed already, by the same input and release: `score` settles it, without Spark where it can."""

import asyncio
import sys
from dataclasses import replace

from batch_job import lookup, run_record
from batch_job.attempt import input_fingerprint
from batch_job.identity import Tables, model_of
from batch_job.inputs.source import check_unchanged
from batch_job.launch import spark_submit
from batch_job.progress import log
from batch_job.run_record import RunRecord, Scoring, State
from batch_job.scoring.options import ScoringOptions
from batch_job.spark import gpus
from batch_job.steps.context import StepContext, open_context, recorded
from batch_job.tables import fence, table
from shared_model.deferred import DeferredQueue
from shared_model.errors import Stale, StoreUnavailable
from shared_model.objects import Location


def settle_unchanged(ds: str, path: Location) -> bool:
    """Bring a planned run to `unchanged`, as `score` does, without Spark. False where Spark is needed: the table holds
    other scores than the run would compute, deferred requests wait, or only executors know their device.

    Raises: Stale, and every other failure; the record then tells it.
    """
    run = lookup.open_for(path, ds)
    if spark_submit.wrong_python(run.runtime.prefix, sys.prefix, "this"):
        return False
    with open_context(path, run.input.identity) as context:
        device = gpus.known_device(context.nightly.spark_master)
        if device is None:
            return False
        options = ScoringOptions.from_settings(context.state, context.nightly, run.release, device)
        committed = committed_before(context, run, options)
        if committed is None or _requests_wait(context):
            return False
        with recorded(context):
            refuse_changed(context, run)
            # As after a drain that found nothing to answer.
            run_record.write(path, replace(record_unchanged(context, run, committed), problem=""))
            log("0 deferred requests answered")
        return True


def committed_before(context: StepContext, run: RunRecord, options: ScoringOptions) -> Scoring | None:
    """The committed scores of the day, if this run would compute the same."""
    fingerprint = input_fingerprint(run, options, context.nightly.shard_rows(options.device))
    return already_committed(context.tables, run, fingerprint)


def record_unchanged(context: StepContext, run: RunRecord, committed: Scoring) -> RunRecord:
    """The run whose scores the table holds already."""
    log(f"ds={run.ds}: unchanged; attempt {committed.token} committed this input with this release")
    if run.scoring and run.scoring.token == committed.token:
        return run
    run = replace(run, state=State.UNCHANGED, scoring=committed, problem="")
    run_record.write(context.path, run)
    return run


def refuse_changed(context: StepContext, run: RunRecord) -> None:
    """Raises: Stale when another run has begun on the day since this run's last attempt; JobError when the input is not
    as planned."""
    if run.state is State.STALE:
        raise Stale(f"run {run.run_id} of ds={run.ds} was superseded; plan a new run to score the day again")
    latest = fence.latest_token(context.client, run.ds, model_of(run.input.identity))
    if run.token and latest is not None and latest > run.token:
        raise Stale(f"attempt {latest} at ds={run.ds} has begun since attempt {run.token}, this run's last")
    check_unchanged(run.input)


def already_committed(tables: Tables, run: RunRecord, fingerprint: str) -> Scoring | None:
    """The committed scores of the day, if they have this very fingerprint. Raises: JobError when they are of another
    input."""
    delta = table.open_table(tables.scores, table.SCORES)
    table.refuse_other_input(delta, run.ds, run.input.identity)
    committed = table.committed(delta, run.ds)
    if committed is None or committed.fingerprint != fingerprint:
        return None
    facts = table.commit_facts(delta, run.ds, committed.token)
    version = facts.get("tandem.quarantine_version")
    lines = table.quarantined(tables.quarantine, run.ds, committed.token)
    if version and not lines:
        # They have expired. Without them its counts would not add up.
        return None
    return Scoring(
        token=committed.token,
        plan_id=fingerprint,
        table_version=committed.table_version,
        rows=committed.rows,
        quarantined=lines,
        quarantine_version=int(version) if version else None,
        content=facts.get("tandem.content", ""),
    )


def _requests_wait(context: StepContext) -> bool:
    """Whether there are deferred requests to answer. True when Redis does not answer: the drain reports that."""

    async def waiting() -> int:
        async with fence.connect_asyncio(context.redis_url) as client:
            return await DeferredQueue(client, context.deferred).waiting()

    try:
        return context.nightly.deferred_drain_limit > 0 and asyncio.run(waiting()) > 0
    except StoreUnavailable:
        return True
