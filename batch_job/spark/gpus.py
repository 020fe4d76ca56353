"""GPUs by Spark's own scheduling: what scoring takes of an executor, and which GPU a task was given."""

import os
import re
from typing import TYPE_CHECKING

from batch_job.launch import spark_submit
from batch_job.spark import task_context
from shared_model import devices
from shared_model.errors import JobError
from shared_model.types import Device

if TYPE_CHECKING:
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession

#: What Spark calls them.
_GPU = "gpu"
_EXECUTOR_GPUS = "spark.executor.resource.gpu.amount"


def scoring_profile(spark: "SparkSession") -> "ResourceProfile | None":
    """The resources of a scoring task: its executor's GPUs, whole, and all cores for tokenisation. None where Spark
    hands out no GPUs. Raises: JobError where it hands out shares of one."""
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    conf = spark.sparkContext.getConf()
    amount = conf.get(_EXECUTOR_GPUS, "")
    if local_cores(spark.sparkContext.master) or not amount:
        return None
    if not amount.isdecimal() or not int(amount):
        raise JobError(
            f"{_EXECUTOR_GPUS}={amount}: an executor scores with whole GPUs; set TANDEM_NIGHTLY_TENSOR_PARALLEL, or 1"
        )
    cores = int(conf.get("spark.executor.cores", "") or conf.get("spark.task.cpus", "1"))
    return ResourceProfileBuilder().require(TaskResourceRequests().cpus(cores).resource(_GPU, float(amount))).build


def local_conf(master: str) -> dict[str, str]:
    """Options of a Spark in one process on a host with a GPU, which it cannot schedule: tasks that take all cores, so
    that one runs at a time, by one worker with one copy of the model. Nothing elsewhere."""
    cores = local_cores(master)
    if not cores or devices.detect() is not Device.CUDA:
        return {}
    return {"spark.task.cpus": str(cores), spark_submit.IDLE_WORKERS: "1"}


def task_device(master: str) -> Device:
    """The device of a task: the GPU that Spark gave it; in a Spark of one process, which cannot give any, the device of
    the host. Elsewhere a GPU that was not given belongs to another task."""
    if given():
        return Device.CUDA
    return devices.detect() if local_cores(master) else Device.CPU


def known_device(master: str) -> Device | None:
    """The device of tasks as far as it is known before Spark starts; None where Spark may hand out GPUs."""
    if os.environ.get(spark_submit.GPU_SCRIPT):
        return None
    return devices.detect() if local_cores(master) else Device.CPU


def given() -> tuple[int, ...]:
    """Numbers of the GPUs that Spark gave this task; none where it gave none, or there is no task.

    Raises: JobError where the discovery script does not give numbers.
    """
    context = task_context.current()
    resource = context.resources().get(_GPU) if context else None
    addresses = resource.addresses if resource else []
    if strange := [address for address in addresses if not address.isdecimal()]:
        raise JobError(
            f"the GPU discovery script gave the address {strange[0]!r}, not a number as nvidia-smi's index is"
        )
    return tuple(map(int, addresses))


def local_cores(master: str) -> int:
    """Cores of a Spark in one process, 0 of any other."""
    found = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", master)
    if not found:
        return 0
    cores = found.group(1) or "1"
    return (os.cpu_count() or 1) if cores == "*" else int(cores)
