"""JSON Lines as planning sees them. Rows are judged one by one later; here a file has to have its columns at all."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import BinaryIO

from batch_job.inputs import ids
from batch_job.inputs.lines import lines
from batch_job.inputs.messages import Number, Unreadable, id_text, parse_line

#: JSON's names of what a parsed line holds; Python reads NaN and Infinity as floats.
_KINDS: dict[type, str] = {
    str: "text",
    Number: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
    type(None): "null",
    float: "NaN or Infinity",
}

#: Lines of a file in which each column must hold a text once. A file that lacks a column has no line that ends the
#: search: without a bound, the larger the day, the later its plan would fail.
MOST_LINES = 100_000


def problem(content: BinaryIO, names: Sequence[str]) -> str:
    """Why a file's rows are no messages, by its first MOST_LINES; empty as soon as each column was seen to hold text,
    the first of them, that of the ids, text or what is read as text.

    Where none of them is an object there are no columns to judge by: its lines are quarantined one by one.
    """
    held: dict[str, object] = {}
    objects = False
    for record in _objects(content):
        objects = True
        values = {name: record[name] for name in names if name in record and not isinstance(held.get(name), str)}
        if names[0] in values:
            values[names[0]] = id_text(values[names[0]])
        held.update(values)
        if all(isinstance(held.get(name), str) for name in names):
            return ""
    seen = f"any of its first {MOST_LINES:,} rows" if content.read(1) else "any row"
    return _wrong(held, names, seen) if objects else ""


def id_type(content: BinaryIO, name: str) -> str:
    """The type of the first value that can be an id."""
    found = (record.get(name) for record in _objects(content))
    first = next((value for value in found if isinstance(value, str | Number | bool)), "")
    return ids.TEXT if isinstance(first, str) else _KINDS[type(first)]


def _wrong(held: dict[str, object], names: Sequence[str], seen: str) -> str:
    name = next(name for name in names if not isinstance(held.get(name), str))
    if name not in held:
        return f"has no column {name!r} in {seen}"
    kind = _KINDS[type(held[name])]
    if name == names[0]:
        return f"has no id in column {name!r} of {seen}, but {kind}: {ids.CAST}"
    return f"has no text in column {name!r} of {seen}, but {kind}"


def _objects(content: BinaryIO) -> Iterator[dict[str, object]]:
    """Those of its first MOST_LINES that are objects."""
    for line in islice(lines(content), MOST_LINES):
        with suppress(Unreadable):
            record = parse_line(line)
            if isinstance(record, dict):
                yield record
