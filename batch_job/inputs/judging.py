"""mapInArrow: batches that Spark read → the same rows judged, each once: a message or a quarantined line."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import TypeVar

import pyarrow as pa

from batch_job.inputs import csv_records
from batch_job.inputs.messages import Message, Reason, Unreadable, as_json, as_text, read_line, read_record
from batch_job.run_record import Columns

T = TypeVar("T")

#: A judged row: its place, its bytes unless it is a message and they are not kept, and either a message or the reason
#: for its quarantine.
JUDGED = pa.schema(
    [
        ("file", pa.string()),
        ("block", pa.int64()),
        ("line", pa.int64()),
        ("raw", pa.binary()),
        *((name, pa.string()) for name in ("id", "text", "pair", "reason")),
    ]
)
#: Its id, text, pair and reason.
_Judged = tuple[str | None, str | None, str | None, Reason | None]
JUDGED_DDL = "file string, block long, line long, raw binary, id string, text string, pair string, reason string"

_PLACE = ["file", "block", "line"]

#: Rows of a batch that is cut here, and not by Spark.
_BATCH_ROWS = 4096


def judge_lines(batches: Iterator[pa.RecordBatch], columns: Columns, keep: bool) -> Iterator[pa.RecordBatch]:
    """JSON Lines; `raw` is a line. `keep`: the bytes of messages, too."""
    for batch in batches:
        lines = batch.column("raw").to_pylist()
        yield _beside(batch.select(_PLACE), lines, [_judged(read_line, line, columns) for line in lines], keep)


def judge_rows(batches: Iterator[pa.RecordBatch], columns: Columns, keep: bool) -> Iterator[pa.RecordBatch]:
    """A table whose columns Spark knows: their bytes come as text0, text1, … in the order of `columns.names`."""
    for batch in batches:
        texts = batch.drop_columns(_PLACE).to_pylist()
        records = [dict(zip(columns.names, map(as_text, row.values()), strict=True)) for row in texts]
        judged = [_judged(read_record, record, columns) for record in records]
        yield _beside(batch.select(_PLACE), list(map(as_json, records)), judged, keep)


def judge_records(batches: Iterator[pa.RecordBatch], columns: Columns, keep: bool) -> Iterator[pa.RecordBatch]:
    """CSV; the lines of a file come in their order, all of them to one task. A record may span several."""
    lines = ((row["file"], row["raw"]) for batch in batches for row in batch.to_pylist())
    found = (record for file, group in groupby(lines, itemgetter(0)) for record in _records(file, group, columns))
    while records := list(islice(found, _BATCH_ROWS)):
        *place, raws, judged = zip(*records, strict=True)
        kinds = JUDGED.types[: len(_PLACE)]
        placed = [pa.array(column, kind) for column, kind in zip(place, kinds, strict=True)]
        yield _beside(pa.RecordBatch.from_arrays(placed, _PLACE), raws, judged, keep)


def _records(
    file: str, lines: Iterator[tuple[str, bytes]], columns: Columns
) -> Iterator[tuple[str, int, int, bytes, _Judged]]:
    """Each record's place, its bytes, and what it is."""
    records = csv_records.with_raw(line for _, line in lines)
    header, _ = next(records)
    for number, (fields, raw) in enumerate(records):
        yield file, 0, number, raw, _judged(partial(_read_fields, header), fields, columns)


def _read_fields(header: Sequence[str], fields: Sequence[str], columns: Columns) -> Message:
    """Raises: Unreadable."""
    if not fields:
        raise Unreadable(Reason.EMPTY)
    if len(fields) != len(header):
        raise Unreadable(Reason.WRONG_TYPE)
    return read_record({name: fields[header.index(name)] for name in columns.names}, columns)


def _judged(read: Callable[[T, Columns], Message], row: T, columns: Columns) -> _Judged:
    try:
        return *read(row, columns), None
    except Unreadable as unreadable:
        return None, None, None, unreadable.reason


def _beside(place: pa.RecordBatch, raws: Sequence[bytes], judged: Sequence[_Judged], keep: bool) -> pa.RecordBatch:
    """Rows by their place and bytes, and what they are."""
    *messages, reasons = zip(*judged, strict=True) if judged else [()] * 4
    kept = raws if keep else [None if reason is None else raw for raw, reason in zip(raws, reasons, strict=True)]
    kinds = JUDGED.types[place.num_columns :]
    columns = [pa.array(column, kind) for column, kind in zip((kept, *messages, reasons), kinds, strict=True)]
    return pa.RecordBatch.from_arrays([*place.columns, *columns], schema=JUDGED)
