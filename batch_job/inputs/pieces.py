"""Files behind a URL, read by executors through `shared_model.objects`, so that any Spark reads any store without jars.

A file is cut into ranges of bytes. A piece of JSON Lines has the lines that begin in its range, one of Parquet the row
groups that do; a file of CSV, or a packed one, is a single piece.
"""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from batch_job.inputs import ids
from batch_job.inputs.files import Folder
from batch_job.inputs.lines import LONGEST_LINE, lines
from batch_job.run_record import Format, Input, InputFile

#: Most bytes of a piece, about what Spark gives a task, and least, where there are fewer pieces than slots.
_PIECE, _LEAST_PIECE = 64 << 20, 1 << 20
_BATCH_ROWS = 4096

_PLACE = (("file", pa.string()), ("block", pa.int64()))
_PIECES = pa.schema([*_PLACE, ("end", pa.int64())])
LINES = pa.schema([*_PLACE, ("line", pa.int64()), ("raw", pa.binary())])

#: Spark's names of the types of ids → Arrow's, other than those of decimals. Texts are bytes, because one that is no
#: UTF-8 is to be quarantined.
_ARROW = {
    "string": pa.binary(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
}


@dataclass(frozen=True)
class RowReader:
    """Reads rows of Parquet files with ids of one type."""

    folder: str
    names: tuple[str, ...]
    id_type: str

    @property
    def ddl(self) -> str:
        """The id as `column0`, then the texts."""
        kind = ids.read_as(self.id_type)
        columns = ["binary" if kind == "string" else kind, *("binary" for _ in self.names[1:])]
        named = (f"column{place} {column}" for place, column in enumerate(columns))
        return f"file string, block long, line long, {', '.join(named)}"

    def __call__(self, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """mapInArrow: the rows of pieces, every page's checksum verified."""
        for name, start, end in _each(pieces):
            with Folder(self.folder).open(name) as raw, pq.ParquetFile(raw, page_checksum_verification=True) as file:
                numbers = count()
                groups = [group for group in range(file.num_row_groups) if start <= _begins(file, group) < end]
                for batch in file.iter_batches(_BATCH_ROWS, groups, columns=list(self.names)) if groups else ():
                    yield self._placed(batch, name, start, numbers)

    def _placed(self, batch: pa.RecordBatch, name: str, start: int, numbers: Iterator[int]) -> pa.RecordBatch:
        rows = batch.num_rows
        place = [[os.path.basename(name)] * rows, [start] * rows, list(islice(numbers, rows))]
        kinds = [_arrow(ids.read_as(self.id_type)), *(pa.binary() for _ in self.names[1:])]
        columns = [_cast(batch.column(column), kind) for column, kind in zip(self.names, kinds, strict=True)]
        named = [f"column{number}" for number in range(len(columns))]
        return pa.RecordBatch.from_arrays([*map(pa.array, place), *columns], ["file", "block", "line", *named])


@dataclass(frozen=True)
class LineReader:
    """Reads lines as they stand in the files, in their order."""

    folder: str

    def __call__(self, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for name, start, end in _each(pieces):
            found = enumerate(self._lines(name, start, end))
            while rows := list(islice(found, _BATCH_ROWS)):
                numbers, raws = zip(*rows, strict=True)
                place = [[os.path.basename(name)] * len(rows), [start] * len(rows), list(numbers)]
                yield pa.RecordBatch.from_arrays([*map(pa.array, place), pa.array(raws, pa.binary())], schema=LINES)

    def _lines(self, name: str, start: int, end: int) -> Iterator[bytes]:
        with Folder(self.folder).open(name) as content:
            at = start
            if start:
                # A line that begins before this piece belongs to the one before, unless it ends exactly there.
                content.seek(start - 1)
                at = start - 1 + len(content.readline(LONGEST_LINE + 1))
            for line in lines(content):
                if at >= end:
                    return
                yield line.removesuffix(b"\n")
                at += len(line)


@dataclass(frozen=True)
class JudgingReader:
    """Reads lines and judges them, in one step."""

    read: LineReader
    judge: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

    def __call__(self, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.judge(self.read(pieces))


def pieces(spark: SparkSession, source: Input, id_type: str | None = None) -> DataFrame:
    """The pieces of all files, or of those with ids of one type: each a task."""
    files = [file for file in source.files if id_type in (None, file.id_type)]
    share = math.ceil(sum(file.size for file in files) / spark.sparkContext.defaultParallelism)
    size = min(_PIECE, max(_LEAST_PIECE, share))
    cut = [piece for file in files for piece in _cut(file, source.format, size)]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*cut, strict=True), _PIECES.types, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(columns, schema=_PIECES)).repartition(len(cut))


def _cut(file: InputFile, form: Format, size: int) -> list[tuple[str, int, int]]:
    if form is Format.CSV or file.name.endswith(".gz"):
        return [(file.name, 0, max(1, file.size) << 20)]
    return [(file.name, start, start + size) for start in range(0, max(1, file.size), size)]


def _each(pieces: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, int, int]]:
    for batch in pieces:
        for row in batch.to_pylist():
            yield row["file"], row["block"], row["end"]


def _begins(file: pq.ParquetFile, group: int) -> int:
    """The offset of a row group's first page."""
    column = file.metadata.row_group(group).column(0)
    return int(column.dictionary_page_offset or column.data_page_offset)


def _arrow(kind: str) -> pa.DataType:
    if not kind.startswith("decimal"):
        return _ARROW[kind]
    precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
    return pa.decimal128(int(precision), int(scale))


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if column.type == kind else column.cast(kind)
