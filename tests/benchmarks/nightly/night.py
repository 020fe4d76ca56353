"""python -m tests.benchmarks.nightly.night MASTER STATE RELEASES REDIS [idle]: the nightly run in a Spark that stays.

A partition is scored as `batch_job score` does it, from reading to the commit, again and again, so that what is timed
holds no start of a JVM and no compiling. With "idle" at idle priority, as `TANDEM_NIGHTLY_IDLE` has it.
"""

import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from batch_job.attempt import open_attempt
from batch_job.identity import Tables
from batch_job.launch import spark_submit
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import NightlySettings
from batch_job.spark import gpus
from batch_job.spark.session import check_workers, yield_to_others
from batch_job.steps.plan import plan_run
from batch_job.tables import fence, table
from batch_job.tables.fence import Fence
from shared_model.settings import StateSettings
from tests.load import child


class Night:
    """Answers the benchmark's questions."""

    def __init__(self, spark: SparkSession, state: StateSettings) -> None:
        self._spark = spark
        self._state = state

    def ask(self, ds: str, **options: bool) -> dict[str, Any]:
        """Score a day and commit it, whatever stands there; `options` are those of ScoringOptions. What the run record
        says of it."""
        tables = Tables.for_input(self._state)
        with fence.connect(self._state.redis_url) as client:
            run = plan_run(self._state, client, ds, "bench")
            device = check_workers(self._spark, run.runtime)
            settings = NightlySettings()
            wanted = replace(ScoringOptions.from_settings(self._state, settings, run.release, device), **options)
            latest = Fence.take(client, ds, table.last_attempt(tables.folders, ds))
            with open_attempt(self._spark, run, wanted, tables, latest, settings, force=True) as attempt:
                done = attempt.commit(attempt.write(), {})
        return {**dataclasses.asdict(done), "tokens_per_second": done.tokens_per_second, "busy_share": done.busy_share}


def session(master: str, conf: Mapping[str, str], idle: bool = False) -> SparkSession:
    """Spark in the nightly run's environment."""
    os.environ.update(spark_submit.spark_environment({**os.environ, "TANDEM_RUNTIME_PREFIX": sys.prefix}))
    if idle:
        yield_to_others()
    builder = SparkSession.builder.master(master).appName("bench-nightly")
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(master: str, state: str, releases: str, redis_url: str, priority: str = "") -> None:
    settings = StateSettings(state=Path(state), releases=releases, redis_url=redis_url)
    spark = session(master, {**spark_submit.spark_conf(), **gpus.local_conf(master)}, priority == "idle")
    try:
        child.answer({}, Night(spark, settings).ask)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
