"""Spark's side of the input: files → DataFrames. A damaged file fails the run with its path; it is never left out."""

from collections.abc import Sequence
from functools import partial, reduce

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as sql

from batch_job.inputs import ids, judging, pieces
from batch_job.inputs.judging import JUDGED_DDL
from batch_job.run_record import Format, Input
from shared_model.objects import is_url, located

#: Options that a cluster's own settings could turn round: then files would go missing silently.
_NOTHING_LEFT_OUT = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "parquet.page.verify-checksum.enabled": "true",
}


def judged(spark: SparkSession, source: Input, keep: bool) -> DataFrame:
    """Every row of the input once, judged: columns file, block, line (its place), raw, id, text, pair, reason.

    `keep`: the bytes of messages, too.
    """
    far, by_line = is_url(located(source.folder)), source.format is Format.JSON_LINES
    if by_line or source.format is Format.CSV:
        of_lines = judging.judge_lines if by_line else judging.judge_records
        judge = partial(of_lines, columns=source.columns, keep=keep)
        if far:
            # Lines need not pass through Spark on their way. Pieces of CSV are whole files.
            read = pieces.JudgingReader(pieces.LineReader(source.folder), judge)
            return pieces.pieces(spark, source).mapInArrow(read, JUDGED_DDL)
        lines = _lines(spark, source) if by_line else _whole_files(spark, source)
        return lines.mapInArrow(judge, JUDGED_DDL)
    rows = _rows_of_pieces(spark, source) if far else _rows(spark, source)
    return rows.mapInArrow(partial(judging.judge_rows, columns=source.columns, keep=keep), JUDGED_DDL)


def parquet_files(spark: SparkSession, schema: str, root: str, files: Sequence[str]) -> DataFrame:
    """These files of a table as one DataFrame, columns of its partitions included, every page's checksum verified."""
    return _reader(spark).schema(schema).option("basePath", root).parquet(*files)


def files_with_another_hash(spark: SparkSession, files: Sequence[str], named: str) -> DataFrame:
    """The column `path`: those of `files` whose SHA-256 does not begin with the digits in their path, which are the
    first group of the pattern `named`. No Python worker takes part."""
    contents = _reader(spark).format("binaryFile").load(list(files))
    found = sql.regexp_extract("path", named, 1)
    return contents.where(~sql.sha2("content", 256).startswith(found)).select("path")


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
    """Files whose ids are of one type are read together."""
    id_column, *texts = ("`" + name.replace("`", "``") + "`" for name in source.columns.names)
    frames = []
    for id_type in sorted({file.id_type for file in source.files}):
        schema = ", ".join([f"{id_column} {ids.read_as(id_type)}", *(f"{column} string" for column in texts)])
        paths = [path for file, path in zip(source.files, source.paths, strict=True) if file.id_type == id_type]
        frame = parquet_files(spark, schema, source.folder, paths)
        # As bytes: a text that is no UTF-8 would fail the task on its way to Python.
        columns = [f"cast({text} as binary)" for text in (ids.text_sql(id_type, id_column), *texts)]
        frames.append(_placed(frame, **{f"text{place}": column for place, column in enumerate(columns)}))
    return reduce(DataFrame.union, frames)


def _rows_of_pieces(spark: SparkSession, source: Input) -> DataFrame:
    frames = []
    for id_type in sorted({file.id_type for file in source.files}):
        read = pieces.RowReader(source.folder, source.columns.names, id_type)
        texts = [f"column{place}" for place in range(1, len(source.columns.names))]
        columns = [f"cast({text} as binary)" for text in (ids.text_sql(id_type, "column0"), *texts)]
        named = (f"{column} as text{place}" for place, column in enumerate(columns))
        frame = pieces.pieces(spark, source, id_type).mapInArrow(read, read.ddl)
        frames.append(frame.selectExpr("file", "block", "line", *named))
    return reduce(DataFrame.union, frames)


def _placed(frame: DataFrame, **columns: str) -> DataFrame:
    """`columns`: SQL of each."""
    return frame.selectExpr(
        "_metadata.file_name as file",
        "_metadata.file_block_start as block",
        "monotonically_increasing_id() as line",
        *(f"{column} as {name}" for name, column in columns.items()),
    )
