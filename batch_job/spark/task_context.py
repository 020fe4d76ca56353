"""The task of Spark that this process runs."""

from pyspark import TaskContext


def task_threads() -> int:
    """Cores Spark gave this task."""
    context = TaskContext.get()
    return context.cpus() if context else 1


def task_number() -> int:
    """This task's among those of its stage."""
    context = TaskContext.get()
    return context.partitionId() if context else 0
