"""The settings, Redis and Spark of a step that runs inside spark-submit, and its report."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
from pyspark.sql import SparkSession

from batch_job import reporting, run_record
from batch_job.identity import Tables
from batch_job.progress import say
from batch_job.run_record import ARCHIVE, RecordError, RunRecord
from batch_job.scoring import models
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import NightlySettings
from batch_job.spark import session
from batch_job.tables import fence
from shared_model import devices, settings
from shared_model.errors import JobError
from shared_model.redis_store.server import RedisServer
from shared_model.settings import DeferredSettings, StateSettings


@dataclass(frozen=True)
class Step:
    """What scoring one planned run works with. `accepted`: gates whose failure a person lets pass."""

    path: Path
    state: StateSettings
    nightly: NightlySettings
    deferred: DeferredSettings
    redis_url: str
    client: "redis.Redis"
    accepted: tuple[str, ...] = ()
    identity: str = ARCHIVE

    @property
    def tables(self) -> Tables:
        return Tables.of(self.state, self.identity)


@contextmanager
def open_step(path: Path, identity: str, accepted: tuple[str, ...] = ()) -> Iterator[Step]:
    state, nightly = settings.load(StateSettings), settings.load(NightlySettings)
    deferred = settings.load(DeferredSettings)
    with RedisServer(state) as server, fence.connect(server.url) as client:
        yield Step(path, state, nightly, deferred, server.url, client, accepted, identity)


@contextmanager
def scoring_session(step: Step, run: RunRecord) -> Iterator[tuple[SparkSession, ScoringOptions]]:
    if step.nightly.nightly_idle and session.in_one_process():
        # Before, because a proof judges latency: it must not wait for whoever shares the host.
        ScoringOptions.of(step.state, step.nightly, run.release, devices.detect()).proven()
        session.yield_to_others()
    spark = session.start(f"tandem {run.ds}")
    try:
        device = session.check_workers(spark, run.runtime)
        options = ScoringOptions.of(step.state, step.nightly, run.release, device)
        models.open_on_workers(spark, options)
        yield spark, options
    finally:
        spark.stop()


def write_report(step: Step) -> None:
    try:
        run = run_record.read(step.path)
        nightly = step.nightly
        page, _ = reporting.write(
            step.path, run, nightly.price_per_hour, nightly.price_currency, step.state.releases_root
        )
        if run.findings:
            say(f"report {page}")
    except (JobError, RecordError) as error:
        # The `report` step will try again; what was committed stays so.
        say(f"no report was written: {error}")
