"""mapInArrow: batches that Spark read → the same rows judged, each once: a message or a quarantined line."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import pyarrow as pa

from batch_job.inputs import csv_records
from batch_job.inputs.messages import Message, Reason, Unreadable, as_json, as_text, read_line, read_record
from batch_job.run_record import Columns

#: A judged row: its place, its bytes, and either a message or the reason for its quarantine.
JUDGED = pa.schema(
    [
        ("file", pa.string()),
        ("block", pa.int64()),
        ("line", pa.int64()),
        ("raw", pa.binary()),
        *((name, pa.string()) for name in ("id", "text", "pair", "reason")),
    ]
)
JUDGED_DDL = "file string, block long, line long, raw binary, id string, text string, pair string, reason string"

_PLACE = ["file", "block", "line"]

#: Rows of a batch that is cut here, and not by Spark.
_BATCH_ROWS = 4096


def judge_lines(batches: Iterator[pa.RecordBatch], columns: Columns) -> Iterator[pa.RecordBatch]:
    """JSON Lines; `raw` is a line."""
    for batch in batches:
        yield _beside(batch, [_judged(partial(read_line, line, columns)) for line in batch.column("raw").to_pylist()])


def judge_rows(batches: Iterator[pa.RecordBatch], columns: Columns) -> Iterator[pa.RecordBatch]:
    """A table whose columns Spark knows: their bytes come as text0, text1, … in the order of `columns.names`."""
    for batch in batches:
        texts = batch.select([f"text{place}" for place in range(len(columns.names))]).to_pylist()
        records = [dict(zip(columns.names, map(as_text, row.values()), strict=True)) for row in texts]
        judged = [{"raw": as_json(record), **_judged(partial(read_record, record, columns))} for record in records]
        yield _beside(batch.select(_PLACE), judged)


def judge_records(batches: Iterator[pa.RecordBatch], columns: Columns) -> Iterator[pa.RecordBatch]:
    """CSV; the lines of a file come in their order, all of them to one task. A record may span several."""
    lines = ((row["file"], row["raw"]) for batch in batches for row in batch.to_pylist())
    judged = (row for file, group in groupby(lines, itemgetter(0)) for row in _records(file, group, columns))
    while rows := list(islice(judged, _BATCH_ROWS)):
        yield pa.RecordBatch.from_pylist(rows, JUDGED)


def _records(file: str, lines: Iterator[tuple[str, bytes]], columns: Columns) -> Iterator[dict[str, Any]]:
    records = csv_records.with_raw(line for _, line in lines)
    header, _ = next(records)
    for number, (fields, raw) in enumerate(records):
        judged: dict[str, Any]
        if not fields:
            judged = {"reason": Reason.EMPTY}
        elif len(fields) != len(header):
            judged = {"reason": Reason.WRONG_TYPE}
        else:
            record = {name: fields[header.index(name)] for name in columns.names}
            judged = _judged(partial(read_record, record, columns))
        yield {"file": file, "block": 0, "line": number, "raw": raw, **judged}


def _judged(read: Callable[[], Message]) -> dict[str, Any]:
    try:
        message = read()
    except Unreadable as unreadable:
        return {"reason": unreadable.reason}
    return {"id": message.id, "text": message.text, "pair": message.pair}


def _beside(placed: pa.RecordBatch, judged: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows whose place, and perhaps bytes, are known, and what judging gave."""
    added = pa.schema(list(JUDGED)[placed.num_columns :])
    columns = [*placed.columns, *pa.RecordBatch.from_pylist(judged, added).columns]
    return pa.RecordBatch.from_arrays(columns, schema=JUDGED)
