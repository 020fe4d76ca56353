"""Lines → messages, or lines set aside with a reason. Every line ends up as exactly one of the two."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from shared_model.types import MAX_TEXT_BYTES


class Reason(StrEnum):
    """Why a line was quarantined."""

    EMPTY = "empty"
    BAD_JSON = "bad_json"
    WRONG_TYPE = "wrong_type"
    BAD_ENCODING = "bad_encoding"
    TOO_LONG = "too_long"
    DUPLICATE_ID = "duplicate_id"


@dataclass(frozen=True, slots=True)
class Message:
    id: str
    text: str


class Unreadable(Exception):
    """A line that is no message; `reason` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


def read_line(line: bytes) -> Message:
    """One line of JSON Lines. Raises: Unreadable."""
    try:
        content = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(Reason.BAD_ENCODING) from error
    if not content.strip():
        raise Unreadable(Reason.EMPTY)
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Unreadable(Reason.BAD_JSON) from error
    return _message(record)


def _message(record: object) -> Message:
    if not isinstance(record, dict):
        raise Unreadable(Reason.WRONG_TYPE)
    message_id, text = record.get("id"), record.get("text")
    if not (isinstance(message_id, str) and message_id and isinstance(text, str)):
        raise Unreadable(Reason.WRONG_TYPE)
    try:
        # JSON can spell half a surrogate pair, which is no text: it has no UTF-8.
        message_id.encode()
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise Unreadable(Reason.BAD_ENCODING) from error
    if size > MAX_TEXT_BYTES:
        raise Unreadable(Reason.TOO_LONG)
    if not text.strip():
        raise Unreadable(Reason.EMPTY)
    return Message(message_id, text)


def judged_lines(spark: SparkSession, paths: Sequence[str], partitions: int) -> DataFrame:
    """Every line once: columns file, raw (its bytes), id (null if quarantined), reason (null if a message).

    Of lines that share an id, the first in (file, line) order stays. Rows are spread evenly over `partitions`.
    """
    # Cast to binary, Spark's text source gives a line's own bytes, valid UTF-8 or not.
    lines = spark.read.text(list(paths), lineSep="\n").select(
        sql.col("_metadata.file_name").alias("file"),
        sql.col("_metadata.file_block_start").alias("block"),
        sql.monotonically_increasing_id().alias("line"),
        sql.col("value").cast("binary").alias("raw"),
    )
    parsed = lines.mapInArrow(_judge, "file string, block long, line long, raw binary, id string, reason string")
    # Quarantined lines have no id; their place stands in, so that they do not meet in one task.
    place = sql.when(sql.col("id").isNull(), sql.col("line"))
    same_id = Window.partitionBy("id", "place").orderBy("file", "block", "line")
    return (
        parsed.withColumn("place", place)
        .repartition(partitions, "id", "place")
        .withColumn("again", sql.row_number().over(same_id) > 1)
        .select(
            "file",
            "raw",
            sql.when(~sql.col("again"), sql.col("id")).alias("id"),
            sql.when(sql.col("again"), sql.lit(str(Reason.DUPLICATE_ID))).otherwise(sql.col("reason")).alias("reason"),
        )
    )


def _judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        ids: list[str | None] = []
        reasons: list[str | None] = []
        for line in batch.column("raw").to_pylist():
            try:
                ids.append(read_line(line).id)
                reasons.append(None)
            except Unreadable as unreadable:
                ids.append(None)
                reasons.append(str(unreadable.reason))
        columns = [*batch.columns, pa.array(ids, pa.string()), pa.array(reasons, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, "id", "reason"])
