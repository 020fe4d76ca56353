"""JSON Lines as planning sees them. Rows are judged one by one later; here a file has to have its columns at all."""

from collections.abc import Sequence
from typing import BinaryIO

from batch_job.inputs.messages import Unreadable, parse_line

_CHUNK = 1 << 20


def problem(content: BinaryIO, names: Sequence[str]) -> str:
    """Why no row of the file can be a message; empty as soon as each column was seen to hold a text.

    A file without any object has no columns to judge by: its lines are quarantined one by one.
    """
    held: dict[str, object] = {}
    objects = False
    for line in content:
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
    return _wrong(held, names) if objects else ""


def rows(content: BinaryIO) -> int:
    """Lines as Spark's text source sees them: a last line needs no newline."""
    lines, last = 0, b"\n"
    while chunk := content.read(_CHUNK):
        lines += chunk.count(b"\n")
        last = chunk[-1:]
    return lines + (last != b"\n")


def _wrong(held: dict[str, object], names: Sequence[str]) -> str:
    name = next(name for name in names if not isinstance(held.get(name), str))
    if name not in held:
        return f"has no column {name!r} in any row"
    return f"has no text in column {name!r} of any row, but {type(held[name]).__name__}"
