"""The rows of a partition: every one a message, or quarantined with a reason, whatever its format."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from batch_job.inputs import frames
from batch_job.inputs.messages import Reason
from batch_job.run_record import Input

_MESSAGE = ("id", "text", "pair")


@contextmanager
def kept(
    spark: SparkSession, source: Input, partitions: int, prepared: Callable[[DataFrame], DataFrame]
) -> Iterator[DataFrame]:
    """`judged_lines`, prepared, and kept by Spark for this context. Few days have an id twice: only those pay for rows
    of one id to meet."""
    for read in (as_they_lie, judged_lines):
        lines = prepared(read(spark, source, partitions)).persist()
        try:
            if read is judged_lines or ids_differ(lines):
                yield lines
                return
        finally:
            lines.unpersist()


def judged_lines(spark: SparkSession, source: Input, partitions: int) -> DataFrame:
    """Every row once: columns file, raw, id, text, pair, reason.

    A message has its id and text (and pair, where the input holds pairs); a quarantined row has its raw bytes, its line
    or its JSON, and a reason. What a row does not have is null. Of rows that share an id, the first in (file, line)
    order stays. Rows are spread evenly over `partitions`.
    """
    # Quarantined rows have no id; their place stands in, so that they do not meet in one task.
    placed = frames.judged(spark, source, keep=True).selectExpr("*", "case when id is null then line end as place")
    same_id = "partition by id, place order by file, block, line"
    again = f"case when row_number() over ({same_id}) > 1 then '{Reason.DUPLICATE_ID}' else reason end as reason"
    judged = placed.repartition(partitions, "id", "place").selectExpr("file", "raw", *_MESSAGE, again)
    message = (f"case when reason is null then {name} end as {name}" for name in _MESSAGE)
    return judged.selectExpr("file", "case when reason is not null then raw end as raw", *message, "reason")


def as_they_lie(spark: SparkSession, source: Input, partitions: int) -> DataFrame:
    """As `judged_lines` where all ids differ, for less: rows need not meet, and stay where they were read, unless that
    is in too few tasks."""
    judged = frames.judged(spark, source, keep=False).drop("block")
    if judged.rdd.getNumPartitions() < spark.sparkContext.defaultParallelism:
        judged = judged.repartition(partitions, "id", "line")
    return judged.select("file", "raw", *_MESSAGE, "reason")


def ids_differ(lines: DataFrame) -> bool:
    """Whether each message has an id of its own. Hashes that meet by chance count as one id."""
    times = lines.filter("reason is null").groupBy(sql.xxhash64("id").alias("id")).count()
    [most] = times.agg(sql.max("count")).collect()
    return (most[0] or 0) <= 1
