"""The `read` step: committed scores as lines, for people and for pipes. No JVM."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from batch_job.commits import table
from batch_job.inputs.delta import find_table
from batch_job.outputs import rows
from shared_model.errors import JobError

#: What a person looks for first.
_SHORT = ("id", "label", "score", "release", "precision", "scored_at", "source")


def lines(folder: Path, ds: str, limit: int, as_json: bool) -> Iterator[str]:
    """Up to `limit` rows of a day, 0 for all, the archive first: tab-separated under a heading, or all columns as JSON.

    Raises: JobError when there is no table, the day was never committed, a file or the log is damaged, or the table
    asks for a newer reader.
    """
    if (delta := find_table(folder)) is None:
        raise JobError(f"{folder} is no scores table; score a day first, or check TANDEM_SCORES")
    if not table.holds(delta, ds):
        raise JobError(f"{folder} holds no ds={ds}; score it first")
    table.tell_unchecked(delta, ds)
    found = islice(_rows(delta, ds, rows.SCORES.names if as_json else _SHORT[:-1]), limit or None)
    if as_json:
        yield from (json.dumps({"ds": ds, **row}, default=_plain, ensure_ascii=False) for row in found)
        return
    yield "\t".join(_SHORT)
    yield from ("\t".join(_cell(row[column]) for column in _SHORT) for row in found)


def _rows(delta: DeltaTable, ds: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    for source in rows.SOURCES:
        for batch in table.read_files(delta, ds, columns, source):
            yield from ({**row, "source": source} for row in batch.to_pylist())


def _cell(value: object) -> str:
    """A value that keeps to its cell: an id may hold tabs and line ends."""
    return _plain(value) if isinstance(value, datetime) else json.dumps(str(value), ensure_ascii=False)[1:-1]


def _plain(value: Any) -> str:
    """What JSON has no word for: times in UTC, bytes as hexadecimal."""
    return value.isoformat() if isinstance(value, datetime) else bytes(value).hex()
