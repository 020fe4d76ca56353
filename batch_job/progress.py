"""Say now and then how far a Spark job is."""

import sys
import threading
import time
from types import TracebackType

from pyspark.sql import SparkSession

_SECONDS = 5.0


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S', time.gmtime())}  {line}", file=sys.stderr, flush=True)  # noqa: T201


class Progress:
    """Reports the tasks of a job group for as long as this context lasts. `rows` are spread evenly over `tasks`."""

    def __init__(self, spark: SparkSession, group: str, rows: int, tasks: int, seconds: float = _SECONDS) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._group = group
        self._rows = rows
        self._tasks = tasks
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> "Progress":
        self._started = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            say(self.line(self._done(), time.monotonic() - self._started))

    def line(self, done: int, seconds: float) -> str:
        rows = self._rows * done // self._tasks
        text = f"scoring: {done} of {self._tasks} tasks, about {rows:,} of {self._rows:,} rows in {seconds:.0f} s"
        if not done:
            return text
        left = seconds * (self._tasks - done) / done
        return f"{text}, {rows / seconds:,.0f} rows/s, {left:.0f} s left"

    def _done(self) -> int:
        """Tasks finished in the group's running job; its largest stage is the one that scores."""
        running = set(self._tracker.getActiveJobsIds()) & set(self._tracker.getJobIdsForGroup(self._group))
        jobs = (self._tracker.getJobInfo(job) for job in running)
        stages = (self._tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds)
        return max((stage.numCompletedTasks for stage in stages if stage), default=0)
