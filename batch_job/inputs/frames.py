"""Spark's side of the input: files → DataFrames. A damaged file fails the run with its path; it is never left out."""

from collections.abc import Sequence
from functools import partial

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StringType, StructType

from batch_job.inputs import judging
from batch_job.inputs.judging import JUDGED_DDL
from batch_job.record import Format, Input

#: What a cluster's own settings could turn round: then files would go missing silently.
_NOTHING_LEFT_OUT = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "parquet.page.verify-checksum.enabled": "true",
}


def judged(spark: SparkSession, source: Input) -> DataFrame:
    """Every row of the input once, judged: columns file, block, line (its place), raw, id, text, pair, reason."""
    columns = source.columns
    if source.format is Format.JSON_LINES:
        return _lines(spark, source).mapInArrow(partial(judging.judge_lines, columns=columns), JUDGED_DDL)
    if source.format is Format.CSV:
        return _whole_files(spark, source).mapInArrow(partial(judging.judge_records, columns=columns), JUDGED_DDL)
    return _rows(spark, source).mapInArrow(partial(judging.judge_rows, columns=columns), JUDGED_DDL)


def parquet_files(spark: SparkSession, schema: StructType | str, root: str, files: Sequence[str]) -> DataFrame:
    """These files of a table as one DataFrame, columns of its partitions included, every page's checksum verified."""
    return _reader(spark).schema(schema).option("basePath", root).parquet(*files)


def _reader(spark: SparkSession) -> DataFrameReader:
    # Paths are names of files that are there, not patterns: `a[1].csv` is one of them.
    return spark.read.options(**_NOTHING_LEFT_OUT).option("__globPaths__", "false")


def _lines(spark: SparkSession, source: Input) -> DataFrame:
    # Cast to binary, Spark's text source gives a line's own bytes, valid UTF-8 or not.
    return _placed(_reader(spark).text(source.paths, lineSep="\n"), raw="cast(value as binary)")


def _whole_files(spark: SparkSession, source: Input) -> DataFrame:
    """Lines in their order, those of a file in one task: where a record begins is known only from the file's start."""
    gathered = _lines(spark, source).repartition(len(source.files), "file")
    return gathered.sortWithinPartitions("file", "block", "line")


def _rows(spark: SparkSession, source: Input) -> DataFrame:
    schema = StructType()
    for name in source.columns.names:
        schema = schema.add(name, StringType())
    frame = parquet_files(spark, schema, source.folder, source.paths)
    # As bytes: a text that is no UTF-8 would fail the task on its way to Python.
    texts = (f"cast({_quoted(name)} as binary)" for name in source.columns.names)
    return _placed(frame, **{f"text{place}": text for place, text in enumerate(texts)})


def _placed(frame: DataFrame, **columns: str) -> DataFrame:
    """`columns`: SQL of each."""
    return frame.selectExpr(
        "_metadata.file_name as file",
        "_metadata.file_block_start as block",
        "monotonically_increasing_id() as line",
        *(f"{column} as {name}" for name, column in columns.items()),
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
