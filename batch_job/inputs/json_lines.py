"""JSON Lines as planning sees them. Rows are judged one by one later; here a file has to have its columns at all."""

from collections.abc import Sequence
from itertools import islice
from typing import BinaryIO

from batch_job.inputs.messages import Unreadable, parse_line

_CHUNK = 1 << 20

#: Lines of a file in which each column must hold a text once. A file that lacks a column has no line that ends the
#: search: without a bound, the larger the day, the later its plan would fail.
MOST_LINES = 100_000


def problem(content: BinaryIO, names: Sequence[str]) -> str:
    """Why a file's rows are no messages, by its first MOST_LINES; empty as soon as each column was seen to hold text.

    Where none of them is an object there are no columns to judge by: its lines are quarantined one by one.
    """
    held: dict[str, object] = {}
    objects = False
    for line in islice(content, MOST_LINES):
        try:
            record = parse_line(line)
        except Unreadable:
            continue
        if isinstance(record, dict):
            objects = True
            held.update(
                {name: record[name] for name in names if name in record and not isinstance(held.get(name), str)}
            )
            if all(isinstance(held.get(name), str) for name in names):
                return ""
    seen = f"any of its first {MOST_LINES:,} rows" if content.readline() else "any row"
    return _wrong(held, names, seen) if objects else ""


def rows(content: BinaryIO) -> int:
    """Lines as Spark's text source sees them: a last line needs no newline."""
    lines, last = 0, b"\n"
    while chunk := content.read(_CHUNK):
        lines += chunk.count(b"\n")
        last = chunk[-1:]
    return lines + (last != b"\n")


def _wrong(held: dict[str, object], names: Sequence[str], seen: str) -> str:
    name = next(name for name in names if not isinstance(held.get(name), str))
    if name not in held:
        return f"has no column {name!r} in {seen}"
    return f"has no text in column {name!r} of {seen}, but {type(held[name]).__name__}"
