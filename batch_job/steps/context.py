"""The settings, Redis and Spark of a step inside spark-submit; its report, and its failure in the run record."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import redis
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from batch_job import reporting, run_record
from batch_job.identity import Tables, model_of
from batch_job.progress import log
from batch_job.run_record import ARCHIVE, RecordError, RunRecord, Runtime, State
from batch_job.scoring import models
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import NightlySettings
from batch_job.spark import session
from batch_job.tables import fence
from shared_model import devices, settings
from shared_model.errors import JobError, Refused, Stale
from shared_model.objects import Location
from shared_model.redis_store.server import RedisServer
from shared_model.settings import DeferredSettings, StateSettings
from shared_model.types import Device


@dataclass(frozen=True)
class StepContext:
    """`path`: of the run record; `identity`: of the input."""

    path: Location
    state: StateSettings
    nightly: NightlySettings
    deferred: DeferredSettings
    redis_url: str
    client: "redis.Redis"
    identity: str = ARCHIVE

    @property
    def tables(self) -> Tables:
        return Tables.for_input(self.state, self.identity)


@contextmanager
def open_context(path: Location, identity: str) -> Iterator[StepContext]:
    state, nightly = settings.load(StateSettings), settings.load(NightlySettings)
    deferred = settings.load(DeferredSettings)
    with RedisServer(state) as server, fence.connect(server.url) as client:
        yield StepContext(path, state, nightly, deferred, server.url, client, identity)


@contextmanager
def scoring_session(context: StepContext, run: RunRecord) -> Iterator[tuple[SparkSession, ScoringOptions]]:
    with open_session(context, f"tandem {run.ds}", run.release, run.runtime) as opened:
        yield opened


@contextmanager
def open_session(
    context: StepContext, name: str, release: str, runtime: Runtime
) -> Iterator[tuple[SparkSession, ScoringOptions]]:
    """Spark, under a name for people, whose workers run on the Python of `runtime` and begin to open the release."""
    if context.nightly.nightly_idle and session.in_one_process():
        # Earlier than idle priority: the canary check of a variant measures latency.
        ScoringOptions.from_settings(context.state, context.nightly, release, devices.detect()).proven()
        session.yield_to_others()
    spark = session.start(name)
    try:
        device = session.check_workers(spark, runtime)
        options = ScoringOptions.from_settings(context.state, context.nightly, release, device)
        if device is Device.CPU:
            # Where tasks have GPUs, each looks for as many as it needs.
            options.spread()
        models.open_on_workers(spark, options)
        yield spark, options
    finally:
        # One whose JVM is gone has stopped; why, the body says.
        with suppress(ConnectionError, Py4JNetworkError):
            spark.stop()


@contextmanager
def recorded(context: StepContext) -> Iterator[None]:
    """Write a report however the step ends, and a failure into the run record as well."""
    try:
        yield
    except Stale as stale:
        record_failure(context, State.STALE, str(stale))
        raise
    except Refused as refused:
        record_failure(context, State.REFUSED, str(refused))
        raise
    except Exception as error:
        record_failure(context, State.FAILED, str(error))
        raise
    finally:
        write_report(context)


def record_failure(context: StepContext, state: State, problem: str) -> None:
    run = run_record.read(context.path)
    if state is State.STALE and run.token == fence.latest_token(context.client, run.ds, model_of(run.input.identity)):
        # A newer attempt at this very run superseded this one, and owns the record now.
        return
    if run.state in (State.PLANNED, State.REFUSED, State.FAILED):
        try:
            run_record.write(context.path, replace(run, state=state, problem=problem.partition("\n")[0]))
        except RecordError as error:
            # The step ends with the problem itself.
            log(str(error))


def write_report(context: StepContext) -> None:
    try:
        run, nightly = run_record.read(context.path), context.nightly
        page, _ = reporting.write(
            context.path, run, nightly.price_per_hour, nightly.price_currency, context.state.releases_root
        )
        if run.findings:
            log(f"report {page}")
    except (JobError, RecordError) as error:
        # The `report` step tries again; the commit stays.
        log(f"no report was written: {error}")
