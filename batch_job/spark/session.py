"""The driver's Spark session: its slots, and the Python and the device of its workers."""

import math
import os
from collections.abc import Iterator
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from batch_job.launch import spark_submit
from batch_job.run_record import Runtime
from batch_job.settings import NightlySettings
from batch_job.spark import authentication, gpus, priority
from batch_job.spark.failures import cause_line
from shared_model import settings
from shared_model.errors import JobError
from shared_model.types import Device

#: The Spark that the nightly run is tested with. Data frames are scored with earlier ones, too.
_SPARK = (4, 3)

#: The error of a session whose master did not answer, or refused it.
_NO_MASTER = "stopped SparkContext"


def check_workers(spark: SparkSession, runtime: Runtime) -> Device:
    """The device every executor has. Raises: JobError when a worker runs on another Python, or devices differ. A Python
    that Spark unpacks for each executor is the same if its packages are."""

    # Nested, so that it travels by value: a worker on the wrong Python cannot import this module.
    def look(_: Iterator[int]) -> Iterator[tuple[str, str]]:
        """The difference of its Python, empty without one, and its device."""
        import os
        import sys

        other = "" if packages or os.path.realpath(sys.prefix) == os.path.realpath(planned) else sys.prefix
        if packages:
            from batch_job.launch import spark_submit

            other = ", ".join(sorted(spark_submit.packages() ^ packages)[:5])
        if other:
            return iter([(other, "")])
        from batch_job.spark import gpus

        return iter([("", str(gpus.task_device(master)))])

    planned, master, slots = runtime.prefix, spark.sparkContext.master, slots_of(spark)
    # A relative path is one in the folder of an executor, where Spark unpacks archives.
    packages = frozenset() if os.path.isabs(spark.sparkContext.pythonExec) else spark_submit.packages()
    try:
        seen = set(spark.sparkContext.parallelize(range(slots), slots).mapPartitions(look).collect())
    except (Py4JError, PySparkException) as error:
        raise JobError(f"a worker did not start on the Python of {planned}: {cause_line(error)}") from error
    for other in filter(None, {other for other, _ in seen}):
        differ = f"packages of a worker are not those of {planned}: {other}; pack its archive again"
        raise JobError(differ if packages else spark_submit.wrong_python(planned, other, "a worker"))
    devices = {Device(device) for _, device in seen}
    if len(devices) > 1:
        raise JobError(f"executors have different devices ({', '.join(sorted(devices))}); a partition is scored on one")
    return devices.pop()


def start(name: str) -> SparkSession:
    """The driver's Spark, with the options of spark-submit. Raises: JobError where it does not start; SettingError."""
    check_version(pyspark.__version__)
    builder, master = SparkSession.builder.appName(name), _master()
    secret = settings.load(NightlySettings).spark_secret_file
    for option, value in {**gpus.local_conf(master), **authentication.conf(master, secret)}.items():
        builder = builder.config(option, value)
    try:
        return builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        raise JobError(no_session(master, str(error))) from error


def check_version(version: str) -> None:
    """Raises: JobError for a Spark that the nightly run does not know."""
    if tuple(map(int, version.split(".")[:2])) < _SPARK:
        wanted = ".".join(map(str, _SPARK))
        raise JobError(
            f"pyspark {version} scores data frames only; the nightly run needs {wanted}: install pyspark~={wanted}.0"
        )


def no_session(master: str, text: str) -> str:
    """Why Spark did not start, in one line. `text`: what it failed with."""
    why = "no master there took the job" if _NO_MASTER in text else cause_line(text)
    return f"Spark did not start on {master}: {why}; check that address (TANDEM_SPARK_MASTER) and the master's own log"


def in_one_process() -> bool:
    """Whether executors are threads of the driver's JVM."""
    return gpus.local_cores(_master()) > 0


def yield_to_others() -> None:
    """Run this process and its JVM, which is started if it is not there, at idle priority, and with them what they
    start."""
    for process in (os.getpid(), _jvm().java.lang.ProcessHandle.current().pid()):
        priority.yield_to_others(process)


def planned_once(spark: SparkSession, tasks: int) -> SparkSession:
    """A session of the same Spark for the lines of a day, whose shuffles have so many tasks. Spark's own planning stops
    between stages to find their number from what it sees, which a small day pays for and no day needs: its lines are
    counted."""
    own = spark.newSession()
    own.conf.set("spark.sql.adaptive.enabled", "false")
    own.conf.set("spark.sql.shuffle.partitions", str(tasks))
    # Texts, ids and hashes hardly repeat: looking for repetition is a tenth of what executors' JVMs do for a day.
    own.conf.set("spark.sql.inMemoryColumnarStorage.compressed", "false")
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


def _master() -> str:
    """The master that spark-submit got, which only the JVM knows."""
    return SparkConf(_jvm=_jvm()).get("spark.master", "") or ""


def _jvm() -> Any:
    """Started if it is not there."""
    SparkContext._ensure_initialized()
    return SparkContext._jvm
