"""The `score` and `drain` steps inside spark-submit: check the Python, fence, score, commit, drain, report. And, before
it starts, whether it need not."""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import redis
from pyspark.sql import SparkSession

from batch_job import attempt as pipeline
from batch_job import lookup, run_record
from batch_job.checks import history
from batch_job.checks.examination import Written, examine
from batch_job.checks.gate import GateFailed
from batch_job.inputs.source import check_unchanged
from batch_job.launch import spark_submit
from batch_job.progress import say
from batch_job.reporting import report
from batch_job.run_record import RecordError, RunRecord, Scoring, State
from batch_job.scoring.options import ScoringOptions
from batch_job.spark import gpus
from batch_job.steps.drain import answer_deferred
from batch_job.steps.spark_step import Step, open_step, scoring_session, write_report
from batch_job.tables import fence, table
from batch_job.tables.fence import Fence
from shared_model.deferred import DeferredQueue
from shared_model.errors import Refused, Stale, StoreUnavailable, TandemError


def score(ds: str, path: Path, force: bool = False, accepted: tuple[str, ...] = ()) -> RunRecord:
    """Bring a planned run to `committed` or `unchanged`, then answer deferred requests. Either way it is reported.

    Raises: Stale, and whatever else keeps the run from being scored; the record then says so.
    """
    run = lookup.open_for(path, ds)
    with open_step(path, run.input.identity, accepted) as step, _reported(step):
        _refuse(step, run)
        return _with_spark(step, run, force)


def settle_unchanged(ds: str, path: Path) -> bool:
    """Bring a planned run to `unchanged`, as `score` does, where that takes no Spark. False where it does: the table
    holds other scores than the run would compute, deferred requests wait, or only executors know what they compute on.

    Raises: Stale, and whatever else keeps the run from being scored; the record then says so.
    """
    run = lookup.open_for(path, ds)
    if spark_submit.wrong_python(run.runtime.prefix, sys.prefix, "this"):
        return False
    with open_step(path, run.input.identity) as step:
        standing = _standing(step, run)
        if standing is None or _requests_wait(step):
            return False
        with _reported(step):
            _refuse(step, run)
            # As after a drain that found nothing to answer.
            run_record.write(path, replace(_unchanged(step, run, standing), problem=""))
            say("0 deferred requests answered")
        return True


def _standing(step: Step, run: RunRecord) -> Scoring | None:
    """What the table holds of this very run, as far as this host can tell without Spark."""
    device = gpus.known_device(step.nightly.spark_master)
    if device is None:
        return None
    options = ScoringOptions.of(step.state, step.nightly, run.release, device)
    return pipeline.already_committed(step.tables, run, pipeline.plan_id(run, options, step.nightly.nightly_unit_rows))


def _requests_wait(step: Step) -> bool:
    """Whether there are deferred requests for this run to answer. A Redis that does not answer is for `_drain` to
    report."""

    async def waiting() -> int:
        async with fence.connect_asyncio(step.redis_url) as client:
            return await DeferredQueue(client, step.deferred).waiting()

    try:
        return step.nightly.deferred_drain_limit > 0 and asyncio.run(waiting()) > 0
    except StoreUnavailable:
        return True


def _refuse(step: Step, run: RunRecord) -> None:
    """Raises: Stale where another run has begun on the day; JobError where the input is not what was planned."""
    refuse_superseded(step.client, run)
    check_unchanged(run.input)


@contextmanager
def _reported(step: Step) -> Iterator[None]:
    """Whatever happens in here has a report; a failure stands in the record, too."""
    try:
        yield
    except Stale as stale:
        _note(step, State.STALE, str(stale))
        raise
    except Refused as refused:
        _note(step, State.REFUSED, str(refused))
        raise
    except Exception as error:
        _note(step, State.FAILED, str(error))
        raise
    finally:
        write_report(step)


def refuse_superseded(client: "redis.Redis", run: RunRecord) -> None:
    """Raises: Stale when another run has begun on the partition since this run's last attempt."""
    if run.state is State.STALE:
        raise Stale(f"run {run.run_id} of ds={run.ds} was superseded; plan a new run to score the day again")
    latest = fence.latest_token(client, run.ds)
    if run.token and latest is not None and latest > run.token:
        raise Stale(f"attempt {latest} at ds={run.ds} has begun since attempt {run.token}, this run's last")


def _with_spark(step: Step, run: RunRecord, force: bool) -> RunRecord:
    with scoring_session(step, run) as (spark, options):
        run = _score_once(step, run, spark, options, force)
        run = _drain(step, run, spark, options)
        run_record.write(step.path, run)
        return run


def _score_once(step: Step, run: RunRecord, spark: SparkSession, options: ScoringOptions, force: bool) -> RunRecord:
    standing = pipeline.already_committed(
        step.tables, run, pipeline.plan_id(run, options, step.nightly.nightly_unit_rows)
    )
    if standing and not force:
        return _unchanged(step, run, standing)
    attempt = Fence.take(step.client, run.ds, table.last_attempt(step.tables.folders, run.ds))
    run = replace(run, state=State.PLANNED, token=attempt.token, problem="")
    run_record.write(step.path, run)

    def judge(written: Written) -> Mapping[str, str]:
        nonlocal run
        run = _judge(step, run, written, options)
        return history.facts(run.findings) if run.findings else {}

    try:
        with pipeline.supervised(spark, attempt):
            scoring = pipeline.score_partition(spark, run, options, step.tables, attempt, step.nightly, force, judge)
    except GateFailed as refused:
        run_record.write(step.path, replace(run, findings=refused.findings))
        raise
    run = replace(run, state=State.COMMITTED, scoring=scoring)
    run_record.write(step.path, run)
    say(f"ds={run.ds}: {scoring.rows:,} rows committed; {_speed(scoring)}")
    return run


def _unchanged(step: Step, run: RunRecord, standing: Scoring) -> RunRecord:
    """The run whose scores the table holds already."""
    say(f"ds={run.ds}: unchanged; attempt {standing.token} committed this input with this release")
    if run.scoring and run.scoring.token == standing.token:
        return run
    run = replace(run, state=State.UNCHANGED, scoring=standing, problem="")
    run_record.write(step.path, run)
    return run


def _speed(scoring: Scoring) -> str:
    """What was fast, in words: scoring by itself, and all stages together."""
    if not scoring.computed:
        return report.speed(scoring)
    return (
        f"scored at {scoring.scored_per_second:,.0f} rows/s; {scoring.rows_per_second:,.0f} rows/s from reading to "
        "commit"
    )


def _judge(step: Step, run: RunRecord, written: Written, options: ScoringOptions) -> RunRecord:
    """The run with what the gate found. Raises: GateFailed."""
    findings = examine(run, written, options, step.accepted)
    for verdict in findings.verdicts:
        say(f"gate {verdict.gate}: {verdict.outcome}{' (accepted)' if verdict.accepted else ''}: {verdict.line}")
    return replace(run, findings=findings)


def _drain(step: Step, run: RunRecord, spark: SparkSession, options: ScoringOptions) -> RunRecord:
    """The run with what came of its deferred requests. Raises: Stale."""
    try:
        answered, problem = answer_deferred(step, run, spark, options), ""
    except Stale:
        raise
    except TandemError as error:
        # The partition is committed and to be published; requests wait for an idle lane or for the next night.
        answered, problem = 0, f"deferred requests were left waiting: {error}"
        say(problem)
    return replace(run, drained=run.drained + answered, problem=problem)


def _note(step: Step, state: State, problem: str) -> None:
    """Write into the record how the attempt ended."""
    run = run_record.read(step.path)
    if state is State.STALE and run.token == fence.latest_token(step.client, run.ds):
        # What superseded us is a newer attempt at this very run: the record is its own now.
        return
    if run.state in (State.PLANNED, State.REFUSED, State.FAILED):
        try:
            run_record.write(step.path, replace(run, state=state, problem=problem.partition("\n")[0]))
        except RecordError as error:
            # The problem itself is what the run ends with.
            say(str(error))
