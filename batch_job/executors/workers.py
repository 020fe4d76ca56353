"""What the executors are: the Python they run on, and the device they compute on."""

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from batch_job import plan
from batch_job.executors import gpus, processes, scoring
from batch_job.executors.scoring import ScoringOptions
from batch_job.record import Runtime
from shared_model.errors import JobError
from shared_model.types import Device

#: What a Spark job failed for, in its workers' tracebacks and the JVM's.
_REASON = re.compile(
    r"^(?:shared_model\.errors\.\w+: (?P<ours>.+)|.*\bIOException: (?P<room>No space left on device).*"
    r"|.*(?P<lost>Python worker exited unexpectedly|ExecutorLostFailure).*)$",
    re.M,
)
#: What Spark says of a file that it cannot read, and of why: the first cause it names after.
_UNREADABLE = re.compile(
    r"\[(?P<kind>FAILED_READ_FILE\.\w+|PATH_NOT_FOUND)\] .*?\b(?P<file>\w[\w+.-]*:/.+?)\.\s+(SQLSTATE|[A-Z][a-z])"
)
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*(?P<why>.+)$", re.M)
#: What is left of a session whose master answered nothing, or sent it away.
_NO_MASTER = "stopped SparkContext"
#: For want of memory, as a rule.
_LOST = "a worker was killed, as often as Spark tries a task; what it had finished is kept for the next attempt"


def check_workers(spark: SparkSession, runtime: Runtime) -> Device:
    """The device every executor has. Raises: JobError when a worker runs on another Python, or devices differ."""

    # Nested, so that it travels by value: a worker on the wrong Python cannot import this module.
    def look(_: Iterator[int]) -> Iterator[tuple[str, str]]:
        import os
        import sys

        if os.path.realpath(sys.prefix) != os.path.realpath(runtime_prefix):
            return iter([(sys.prefix, "")])
        from batch_job.executors import gpus

        return iter([(sys.prefix, str(gpus.task_device(master)))])

    runtime_prefix, master = runtime.prefix, spark.sparkContext.master
    slots = slots_of(spark)
    try:
        seen = set(spark.sparkContext.parallelize(range(slots), slots).mapPartitions(look).collect())
    except (Py4JError, PySparkException) as error:
        raise JobError(f"a worker did not start on the Python of {runtime.prefix}: {_cause(error)}") from error
    for prefix, _ in seen:
        if problem := plan.wrong_python(runtime.prefix, prefix, "a worker"):
            raise JobError(problem)
    found = {Device(device) for _, device in seen}
    if len(found) > 1:
        raise JobError(f"executors have different devices ({', '.join(sorted(found))}); a partition is scored on one")
    return found.pop()


def open_ahead(spark: SparkSession, options: ScoringOptions) -> None:
    """Have every worker begin to open the model that it will score with, and do not wait for it. Raises: JobError where
    a worker is killed meanwhile."""
    slots = slots_of(spark)
    with failing_in_one_line():
        spark.sparkContext.parallelize(range(slots), slots).foreachPartition(partial(scoring.open_ahead, options))


def session(name: str) -> SparkSession:
    """The driver's Spark, as spark-submit was told. Raises: JobError where it does not start."""
    builder, master = SparkSession.builder.appName(name), _master()
    for option, value in gpus.local_conf(master).items():
        builder = builder.config(option, value)
    try:
        return builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        raise JobError(no_session(master, str(error))) from error


def no_session(master: str, text: str) -> str:
    """Why Spark did not start, in one line. `text`: what it failed with."""
    why = "no master there took the job" if _NO_MASTER in text else _cause(text)
    return f"Spark did not start on {master}: {why}; check that address (TANDEM_SPARK_MASTER) and the master's own log"


def in_one_process() -> bool:
    """Whether executors are threads of the driver's JVM."""
    return gpus.local_cores(_master()) > 0


def yield_to_others() -> None:
    """Run this process and its JVM, which is started if it is not there, at idle priority, and with them what they
    start."""
    for process in (os.getpid(), _jvm().java.lang.ProcessHandle.current().pid()):
        processes.yield_to_others(process)


def planned_once(spark: SparkSession, tasks: int) -> SparkSession:
    """A session of the same Spark whose shuffles have so many tasks. Spark's own planning stops between stages to find
    their number from what it sees, which a small day pays for and no day needs: its lines are counted."""
    own = spark.newSession()
    own.conf.set("spark.sql.adaptive.enabled", "false")
    own.conf.set("spark.sql.shuffle.partitions", str(tasks))
    return own


def slots_of(spark: SparkSession) -> int:
    """Tasks that run at once."""
    cpus = int(spark.sparkContext.getConf().get("spark.task.cpus", "1"))
    return max(1, int(spark.sparkContext.defaultParallelism) // cpus)


def scoring_slots(spark: SparkSession) -> int:
    """Tasks that score at once: where Spark hands out GPUs, each takes all cores of its executor."""
    if (profile := gpus.scoring_profile(spark)) is None:
        return slots_of(spark)
    return max(1, int(spark.sparkContext.defaultParallelism) // int(profile.taskResources["cpus"].amount))


def tasks_for(spark: SparkSession, lines: int, task_rows: int) -> int:
    """Tasks of at most `task_rows` lines each: as many for one slot as for another."""
    slots = slots_of(spark)
    return slots * max(1, math.ceil(lines / (slots * task_rows)))


@contextmanager
def failing_in_one_line() -> Iterator[None]:
    """Raises: JobError where a Spark job fails for a reason that a worker gave, on a file that cannot be read, for want
    of room on a disk, or because workers were killed."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        if reason := _reason(str(error)):
            raise JobError(reason) from error
        raise


def _reason(text: str) -> str:
    """What a Spark job's failure comes down to, in one line; empty where nobody foresaw it."""
    if found := _UNREADABLE.search(text):
        cause = _CAUSE.search(text, found.end())
        file = re.sub("^file:/+", "/", unquote(found["file"]))
        return f"{file} cannot be read: {cause['why'] if cause else found['kind']}; restore it, or plan the run anew"
    known = _REASON.search(text)
    return (known["ours"] or known["room"] or _LOST) if known else ""


def _master() -> str:
    """As spark-submit was told, which only the JVM knows."""
    return SparkConf(_jvm=_jvm()).get("spark.master", "") or ""


def _jvm() -> Any:
    """Started if it is not there."""
    SparkContext._ensure_initialized()
    return SparkContext._jvm


def _cause(error: Any) -> str:
    """The line of a worker's traceback that says what went wrong."""
    lines = [line.strip(": ") for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "Exception" in line or "MISMATCH" in line]
    return (telling or lines or ["no reason given"])[-1]
