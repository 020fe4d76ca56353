"""The `drain` step, inside spark-submit: deferred requests are answered, the day stays as it is."""

import asyncio
from dataclasses import replace

from pyspark.sql import SparkSession

from batch_job import lookup, run_record
from batch_job.deferred.draining import drain
from batch_job.deferred.scores import DeferredScores
from batch_job.identity import Tables, model_of
from batch_job.progress import log
from batch_job.run_record import RunRecord, State
from batch_job.scoring.options import ScoringOptions
from batch_job.steps.context import StepContext, open_context, scoring_session, write_report
from batch_job.steps.plan import active_release
from batch_job.tables import fence
from shared_model.objects import Location
from shared_model.releases import pointers
from shared_model.releases.pointers import Pointers
from shared_model.releases.store import Store

#: States of a run whose last attempt committed nothing.
_NOT_COMMITTED = (State.PLANNED, State.REFUSED, State.FAILED, State.STALE)


def drain_day(ds: str, path: Location, active: bool = False) -> None:
    """Answer deferred requests with the release of a planned run, and leave the day as it is. Either way it reports.
    `active`: with the release that is active now instead.

    Raises: StoreUnavailable, and whatever else keeps requests from being answered.
    """
    run = lookup.open_for(path, ds)
    with open_context(path, run.input.identity) as context:
        if active:
            model = model_of(run.input.identity)
            run = replace(run, release=active_release(Store.from_settings(context.state), context.client, model))
        try:
            with scoring_session(context, run) as (spark, options):
                answered = answer_deferred(context, run, spark, options)
                # Another step may have written meanwhile.
                latest = run_record.read(path)
                # The problem of a committed day can only be requests that were left waiting.
                problem = latest.problem if latest.state in _NOT_COMMITTED else ""
                run_record.write(path, replace(latest, drained=latest.drained + answered, problem=problem))
        finally:
            write_report(context)


def releases_of(found: Pointers, release: str) -> dict[str, str]:
    """The release that answers for each model, "" for the default one; for the model of the run its planned `release`,
    whatever was promoted meanwhile."""
    actives = {name: it.active for name, it in found.others.items()}
    planned = {pointers.name_of(release): release}
    default = found.default.active if found.default else release
    actives[found.default_model] = default
    return {**actives, **planned, "": planned.get(found.default_model, default)}


def answer_deferred(context: StepContext, run: RunRecord, spark: SparkSession, options: ScoringOptions) -> int:
    tables = [tables.scores for tables in Tables.all(context.state) if tables != context.tables]
    scores = DeferredScores(context.tables.scores, run.ds, context.deferred.deferred_wait_seconds, tuple(tables))

    found = pointers.read(Store.from_settings(context.state), context.client)

    async def answer() -> int:
        limit, actives = context.nightly.deferred_drain_limit, releases_of(found, options.release)
        async with fence.connect_asyncio(context.redis_url) as client:
            return await drain(spark, client, options, scores, limit, context.deferred, actives)

    answered = asyncio.run(answer())
    log(f"{answered:,} deferred requests answered")
    return answered
