"""Executors read back what tasks wrote, and verify it. The driver gets counts and the sample that the gate compares."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from pyspark import Accumulator
from pyspark.sql import SparkSession

from batch_job.checks import contents
from batch_job.checks.contents import Contents
from batch_job.progress import Progress
from batch_job.shards.shard_files import FileReport
from batch_job.spark.session import slots_of
from shared_model.objects import Location, join

#: Files of one task, beyond which it is not worth waiting for a line of progress.
_TASK_FILES = 32


def read(spark: SparkSession, table: Location, files: Sequence[FileReport], sample: int) -> Contents:
    """The contents of files of a table's folder, none of which it need hold; as `contents.read`.

    Raises: JobError within `failing_in_one_line`, naming a file that is not as it was written.
    """
    places, context = [(str(join(table, file.path)), file.sha256) for file in files], spark.sparkContext
    done = context.accumulator(0)
    with Progress("reading back", "files", len(places), lambda: int(done.value)):
        parts = context.parallelize(places, _tasks(spark, len(places)))
        # Merged by executors, too: samples of all tasks would be many rows for the driver.
        found = parts.mapPartitions(partial(_read, sample=sample, done=done))
        held: Contents = found.treeReduce(partial(contents.merge, sample=sample))
    return held


def read_labels(spark: SparkSession, uris: Sequence[str], remedy: str) -> Counter[str]:
    """As `contents.read_labels`."""
    if not uris:
        return Counter()
    parts = spark.sparkContext.parallelize(uris, _tasks(spark, len(uris)))
    return sum(parts.mapPartitions(lambda part: [contents.read_labels(part, remedy)]).collect(), Counter[str]())


def _tasks(spark: SparkSession, files: int) -> int:
    return min(files, max(slots_of(spark), -(-files // _TASK_FILES)))


def _read(places: Iterator[tuple[str, str]], sample: int, done: Accumulator[int]) -> Iterator[Contents]:
    files = list(places)
    yield contents.read(files, sample)
    done.add(len(files))
