"""The rows of a partition: every one a message, or quarantined with a reason, whatever its format."""

from pyspark.sql import DataFrame, SparkSession

from batch_job.inputs import frames
from batch_job.inputs.messages import Reason
from batch_job.run_record import Input

_MESSAGE = ("id", "text", "pair")


def judged_lines(spark: SparkSession, source: Input, partitions: int) -> DataFrame:
    """Every row once: columns file, raw, id, text, pair, reason.

    A message has its id and text (and pair, where the input holds pairs); a quarantined row has its raw bytes, its line
    or its JSON, and a reason. What a row does not have is null. Of rows that share an id, the first in (file, line)
    order stays. Rows are spread evenly over `partitions`.
    """
    # Quarantined rows have no id; their place stands in, so that they do not meet in one task.
    placed = frames.judged(spark, source).selectExpr("*", "case when id is null then line end as place")
    same_id = "partition by id, place order by file, block, line"
    again = f"case when row_number() over ({same_id}) > 1 then '{Reason.DUPLICATE_ID}' else reason end as reason"
    judged = placed.repartition(partitions, "id", "place").selectExpr("file", "raw", *_MESSAGE, again)
    message = (f"case when reason is null then {name} end as {name}" for name in _MESSAGE)
    return judged.selectExpr("file", "case when reason is not null then raw end as raw", *message, "reason")
