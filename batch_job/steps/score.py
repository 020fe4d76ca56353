"""The `score` step inside spark-submit: write, judge and commit the scores of a day, then answer deferred requests."""

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import SparkSession

from batch_job import lookup, run_record
from batch_job.attempt import Attempt, open_attempt
from batch_job.checks import gate, history
from batch_job.checks.examination import Written, examine
from batch_job.checks.gate import GateFailed
from batch_job.identity import model_of
from batch_job.progress import log
from batch_job.reporting import plain_text
from batch_job.run_record import Findings, RunRecord, State
from batch_job.scoring.options import ScoringOptions
from batch_job.steps import figures
from batch_job.steps.context import StepContext, open_context, recorded, scoring_session
from batch_job.steps.drain import answer_deferred
from batch_job.steps.unchanged import committed_before, record_unchanged, refuse_changed
from batch_job.tables import table
from batch_job.tables.fence import Fence
from shared_model.errors import Stale, TandemError
from shared_model.objects import Location


def score(ds: str, path: Location, force: bool = False, accepted: tuple[str, ...] = ()) -> RunRecord:
    """Bring a planned run to `committed` or `unchanged`, then answer deferred requests. Either way it is reported.

    `accepted`: gates whose failure a person lets pass.
    Raises: Stale, and every other failure; the record then tells it.
    """
    run = lookup.open_for(path, ds)
    with open_context(path, run.input.identity) as context, recorded(context):
        refuse_changed(context, run)
        with scoring_session(context, run) as (spark, options):
            committed = committed_before(context, run, options)
            if committed and not force:
                run = record_unchanged(context, run, committed)
            else:
                run = score_day(context, run, spark, options, force, accepted)
            run = _drain(context, run, spark, options)
            run_record.write(path, run)
    log(f"ds={run.ds}: {plain_text.verdict(run)}")
    return run


def score_day(
    context: StepContext,
    run: RunRecord,
    spark: SparkSession,
    options: ScoringOptions,
    force: bool,
    accepted: tuple[str, ...] = (),
    turn: Callable[[], object] = lambda: None,
) -> RunRecord:
    """Write, judge and commit the scores of a day. `turn` returns when it may be judged: an earlier day that is scored
    beside it comes first. Raises: Stale, GateFailed, JobError."""
    tables, nightly = context.tables, context.nightly
    last = table.last_attempt(tables.folders, run.ds)
    fence = Fence.take(context.client, run.ds, last, model_of(run.input.identity))
    run = replace(run, state=State.PLANNED, token=fence.token, problem="", staged="")
    run_record.write(context.path, run)
    try:
        with open_attempt(spark, run, options, tables, fence, nightly, force) as attempt:
            written = attempt.write()
            turn()
            findings = _judge(context, attempt, written, accepted)
            scoring = attempt.commit(written, history.facts(findings))
    except GateFailed as refused:
        run_record.write(context.path, replace(run, findings=refused.findings, staged=refused.staged))
        raise
    run = replace(run, state=State.COMMITTED, findings=findings, scoring=scoring)
    run_record.write(context.path, run)
    speed = plain_text.speed(scoring)
    if scoring.computed:
        alone, overall = scoring.scored_per_second, scoring.rows_per_second
        speed = f"scored at {alone:,.0f} rows/s; {overall:,.0f} rows/s from reading to commit"
    log(f"ds={run.ds}: {scoring.rows:,} rows committed; {speed}")
    return run


def _judge(context: StepContext, attempt: Attempt, written: Written, accepted: tuple[str, ...]) -> Findings:
    """Raises: GateFailed; the scores are then kept for a person where one may accept them."""
    try:
        with attempt.stopwatch.stage("gate"):
            findings = examine(attempt.run, written, attempt.options, accepted)
    except GateFailed as refused:
        figures.tell_verdicts(context.client, attempt.run, refused.findings)
        if gate.acceptable(refused.findings.verdicts):
            refused.staged = attempt.staged(written, history.facts(refused.findings)).write()
        raise
    figures.tell_verdicts(context.client, attempt.run, findings)
    for verdict in findings.verdicts:
        log(f"gate {verdict.gate}: {verdict.outcome}{' (accepted)' if verdict.accepted else ''}: {verdict.line}")
    return findings


def _drain(context: StepContext, run: RunRecord, spark: SparkSession, options: ScoringOptions) -> RunRecord:
    """The run with the number of deferred requests answered. Raises: Stale."""
    try:
        answered, problem = answer_deferred(context, run, spark, options), ""
    except Stale:
        raise
    except TandemError as error:
        # The partition is committed and to be published; requests wait for an idle lane or for the next night.
        answered, problem = 0, f"deferred requests were left waiting: {error}"
        log(problem)
    return replace(run, drained=run.drained + answered, problem=problem)
