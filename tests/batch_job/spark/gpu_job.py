"""The application of `test_gpus.py`: prints, as JSON, which GPU and which worker each task had. Argument: an
empty folder."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

from batch_job.run_record import Runtime
from batch_job.scoring.options import ScoringOptions
from batch_job.spark import gpus, session
from batch_job.spark.task_context import task_threads

READING, SCORING = 2, 4
#: How long a task waits for another: those that must meet, and those that must not.
_MEETING_SECONDS, _ALONE_SECONDS = 60.0, 0.3


def looking(folder: Path, meeting: bool) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Nested, so that it travels by value: executors have Tandem, but not its tests."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            mine = folder / str(batch.column(0)[0])
            mine.touch()
            over = time.monotonic() + (_MEETING_SECONDS if meeting else _ALONE_SECONDS)
            while (alone := len(list(folder.iterdir())) == 1) and time.monotonic() < over:
                time.sleep(0.01)
            if not meeting:
                mine.unlink()
            row = {"gpu": gpus.given()[0], "pid": os.getpid(), "threads": task_threads(), "alone": alone}
            yield pa.RecordBatch.from_pylist([row])

    return look


def seen(spark: SparkSession, folder: Path, count: int, profile: ResourceProfile | None) -> list[dict[str, object]]:
    """Of so many tasks, of which those without a profile must meet."""
    folder.mkdir()
    tasks = spark.range(0, count, 1, count).mapInArrow(
        looking(folder, meeting=profile is None), "gpu long, pid long, threads long, alone boolean", profile=profile
    )
    return [row.asDict() for row in tasks.collect()]


def main(folder: Path) -> None:
    spark = session.start("gpus")
    options = ScoringOptions("", "", session.check_workers(spark, Runtime(sys.prefix, "")), 1, 1)
    one_core = TaskResourceRequests().cpus(1).resource("gpu", 1.0)
    found = {
        "device": options.device,
        "precision": options.precision,
        "slots": session.scoring_slots(spark),
        "reading": seen(spark, folder / "reading", READING, None),
        "scoring": seen(spark, folder / "scoring", SCORING, gpus.scoring_profile(spark)),
        # As without a setting for the cores of an executor: workers that have read may then score.
        "one core": seen(spark, folder / "one", SCORING, ResourceProfileBuilder().require(one_core).build),
    }
    print(json.dumps(found))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
