"""The task of Spark that this process runs. Loads nothing of Spark: a process that has not loaded it runs no task."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import TaskContext


def current() -> "TaskContext | None":
    """None outside a task."""
    spark = sys.modules.get("pyspark")
    return spark.TaskContext.get() if spark else None


def task_threads() -> int:
    """Cores Spark gave this task."""
    context = current()
    return context.cpus() if context else 1


def task_number() -> int:
    """This task's among those of its stage."""
    context = current()
    return context.partitionId() if context else 0
