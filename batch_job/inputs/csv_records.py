"""CSV as RFC 4180 has it: UTF-8, commas, quotes doubled inside quotes, a header line. Files are cut into records
by this code alone, where they are counted and where they are scored."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from batch_job.inputs.lines import lines

#: Characters of one field. Past them it is no text but an unclosed quote, which would take in the whole file.
FIELD_LIMIT = 16 << 20

#: Stands for a carriage return within a line, which `csv` would take for the record's end. Half a surrogate pair that
#: no decoded line holds.
_RETURN = "\ud800"
#: Of what other tools call CSV, and the separator's name.
_SEPARATORS = {";": "';'", "\t": "a tab", "|": "'|'"}
_BOM = b"\xef\xbb\xbf"


def records(lines: Iterable[bytes]) -> Iterator[list[str]]:
    """Every record, the header first; an empty line is one without fields. `lines` come without their newline.

    Bytes that are no UTF-8 are in it as half surrogate pairs. Raises: ValueError where quotes do not fit.
    """
    return (record for record, _ in with_raw(lines))


def with_raw(lines: Iterable[bytes]) -> Iterator[tuple[list[str], bytes]]:
    """The same, each record beside its lines as they stand in the file."""
    csv.field_size_limit(FIELD_LIMIT)
    taken: list[bytes] = []
    reader = csv.reader(_decoded(lines, taken), strict=True)
    try:
        for record in reader:
            # The reader takes no line before it needs it.
            yield [field.replace(_RETURN, "\r") for field in record], b"\n".join(taken)
            taken.clear()
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}; quotes inside quotes are written twice") from error


def problem(content: BinaryIO, names: Sequence[str]) -> str:
    """Why a file cannot be read, from its header; empty when it can."""
    header = next(records(_lines(content)), None)
    if header is None:
        return ""
    for name in names:
        if name not in header:
            # A header of one field may look like several.
            found = [label for separator, label in _SEPARATORS.items() if len(header) == 1 and separator in header[0]]
            hint = f": it looks like {found[0]} separates the columns, and Tandem reads commas" if found else ""
            return f"has no column {name!r}; its header names {', '.join(header)}{hint}"
        if header.count(name) > 1:
            return f"has column {name!r} more than once"
    return ""


def rows(content: BinaryIO) -> int:
    """Records, the header not counted."""
    return max(0, sum(1 for _ in records(_lines(content))) - 1)


def _lines(content: BinaryIO) -> Iterator[bytes]:
    return (line.removesuffix(b"\n") for line in lines(content))


def _decoded(lines: Iterable[bytes], taken: list[bytes]) -> Iterator[str]:
    """The lines as text; `taken` gets the bytes of each."""
    for number, line in enumerate(lines):
        taken.append(line)
        text = (line if number else line.removeprefix(_BOM)).decode("utf-8", "surrogateescape")
        end = "\r\n" if text.endswith("\r") else "\n"
        yield text.removesuffix("\r").replace("\r", _RETURN) + end
