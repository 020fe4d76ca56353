"""The rows of a partition: every one a message or set aside with a reason, whatever it was written as."""

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from batch_job.inputs import frames
from batch_job.inputs.messages import Reason
from batch_job.record import Input


def judged_lines(spark: SparkSession, source: Input, partitions: int) -> DataFrame:
    """Every row once: columns file, raw, id, text, pair, reason.

    A message has its id and text (and pair, where the input holds pairs); a quarantined row has its raw bytes, its line
    or its JSON, and a reason. What a row does not have is null. Of rows that share an id, the first in (file, line)
    order stays. Rows are spread evenly over `partitions`.
    """
    # Quarantined rows have no id; their place stands in, so that they do not meet in one task.
    place = sql.when(sql.col("id").isNull(), sql.col("line"))
    same_id = Window.partitionBy("id", "place").orderBy("file", "block", "line")
    again = sql.when(sql.col("again"), sql.lit(str(Reason.DUPLICATE_ID)))
    return (
        frames.judged(spark, source)
        .withColumn("place", place)
        .repartition(partitions, "id", "place")
        .withColumn("again", sql.row_number().over(same_id) > 1)
        .withColumn("reason", again.otherwise(sql.col("reason")))
        .select("file", *_one_or_the_other())
    )


def _one_or_the_other() -> list[Column]:
    quarantined = sql.col("reason").isNotNull()
    message = [sql.when(~quarantined, sql.col(name)).alias(name) for name in ("id", "text", "pair")]
    return [sql.when(quarantined, sql.col("raw")).alias("raw"), *message, sql.col("reason")]
