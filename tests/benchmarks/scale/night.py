"""python -m tests.benchmarks.scale.night MASTER STATE STORE RELEASES REDIS: nights on a cluster, with an engine that
sleeps, from planning to the commit. The gate's own model is left out; what executors read back is not."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from batch_job.attempt import open_attempt
from batch_job.checks import agreement, reading_back
from batch_job.identity import Tables
from batch_job.launch import spark_submit
from batch_job.scoring import shard_task
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import NightlySettings
from batch_job.steps.plan import plan_run
from batch_job.tables import fence, table
from batch_job.tables.fence import Fence
from shared_model.settings import StateSettings
from shared_model.types import Device
from tests.benchmarks.nightly.night import session
from tests.benchmarks.scale import sleeping
from tests.load import child

_READ_BACK = "read back"


class Nights:
    """Answers the benchmark's questions."""

    def __init__(self, spark: SparkSession, state: StateSettings) -> None:
        self._spark = spark
        self._state = state

    def ask(self, ds: str) -> dict[str, Any]:
        """Score a day and commit it: rows, those that an earlier attempt had finished, files, bytes, and seconds of
        each stage since `began`, a Unix time."""
        began, started = time.time(), time.monotonic()
        tables, settings = Tables.for_input(self._state), NightlySettings()
        with fence.connect(self._state.redis_url) as client:
            run = plan_run(self._state, client, ds, "bench")
            planned = time.monotonic() - started
            options = ScoringOptions.from_settings(self._state, settings, run.release, Device.CPU)
            latest = Fence.take(client, ds, table.last_attempt(tables.folders, ds))
            with open_attempt(self._spark, run, options, tables, latest, settings) as attempt:
                written = attempt.write()
                with attempt.stopwatch.stage(_READ_BACK):
                    held = reading_back.read(self._spark, written.table, written.to_commit, agreement.SAMPLE)
                scoring = attempt.commit(written, {})
        if held.rows != scoring.rows:
            raise AssertionError(f"{scoring.rows:,} rows committed, and {held.rows:,} read back")
        return {
            "rows": scoring.rows,
            "adopted": sum(file.judged for file in written.files if file.adopted),
            "shards": len(written.files),
            "files": len(written.to_commit),
            "bytes": sum(file.size for file in written.to_commit),
            "seconds": time.monotonic() - started,
            "began": began,
            # Those of workers lie within "score".
            "stages": {"plan": planned}
            | {it: value for it, value in scoring.seconds.items() if " " not in it or it == _READ_BACK},
        }


def main(master: str, state: str, store: str, releases: str, redis_url: str) -> None:
    settings = StateSettings(state=Path(state), store=store, releases=releases, redis_url=redis_url)
    conf: Mapping[str, str] = spark_submit.spark_conf()
    vars(shard_task)["score_shards"] = sleeping.score_shards
    spark = session(master, conf)
    try:
        child.answer({}, Nights(spark, settings).ask)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
