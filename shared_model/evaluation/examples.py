"""Labelled examples from a CSV: text,label; or text,text_pair,label for a model that reads pairs."""

import csv
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared_model.encoding import Text
from shared_model.errors import BadInput

#: Common names of the columns, the least ambiguous first. A first line with one of these is a header.
_NAMES = {
    "text": ("text", "text_a", "sentence1", "premise", "utterance", "message", "sentence", "query", "question", "body",
             "content", "comment", "review", "phrase", "input"),
    "text_pair": ("text_pair", "text_b", "sentence2", "hypothesis"),
    "label": ("label", "labels", "intent", "category", "class", "target", "tag", "topic", "sentiment", "score", "stars",
              "rating", "gold"),
}  # fmt: skip

Row = tuple[int, list[str]]


@dataclass(frozen=True)
class Examples:
    """Texts and their labels. `places`: FILE:LINE of each. `sha256`: of the file. `columns`: description of the columns
    that were read."""

    texts: list[Text]
    labels: list[str]
    places: list[str]
    sha256: str
    columns: str


def read_examples(path: Path, pairs: bool = False, unlabelled: bool = False) -> Examples:
    """Read a CSV. Raises: BadInput naming the file and line.

    A header line is recognised by the names of its columns. A first line with other names whose label occurs below is
    an example; if neither is clear, the error says how to resolve it.
    `unlabelled`: an empty label is accepted.
    """
    raw = _read(path)
    try:
        contents = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(str(path), "is not UTF-8") from error
    rows = _rows(contents, str(path))
    wanted = ("text", "text_pair", "label") if pairs else ("text", "label")
    columns, header = _columns(rows, str(path), wanted)
    found = Examples([], [], [], hashlib.sha256(raw).hexdigest(), _in_words(rows, wanted, columns, header))
    for line, row in rows[1:] if header else rows:
        _take(row, f"{path}:{line}", columns, unlabelled, found)
    if not found.texts:
        raise BadInput(str(path), "has no examples under its header line")
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(str(path), f"cannot be read: {error.strerror or error}") from error


def _rows(contents: str, source: str) -> list[Row]:
    """Rows and the numbers of the lines in which they end."""
    # newline="": the csv module needs unchanged line ends, because a quoted text may contain some.
    reader = csv.reader(io.StringIO(contents, newline=""), strict=True)
    try:
        return [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise BadInput(f"{source}:{reader.line_num}", str(error)) from error


def _take(row: Sequence[str], place: str, columns: Sequence[int], unlabelled: bool, found: Examples) -> None:
    cells = [row[column] if column < len(row) else "" for column in columns]
    pairs = len(cells) > 2
    if not all(cell.strip() for cell in (cells[:-1] if unlabelled else cells)):
        raise BadInput(place, f"needs {'two texts' if pairs else 'a text'} and a label")
    found.texts.append((cells[0], cells[1]) if pairs else cells[0])
    found.labels.append(cells[-1])
    found.places.append(place)


def _columns(rows: Sequence[Row], source: str, wanted: Sequence[str]) -> tuple[list[int], bool]:
    """The index of each wanted column, and whether the first row is a header. Raises: BadInput."""
    first = [cell.strip().lower() for cell in rows[0][1]] if rows else []
    if "text_pair" not in wanted and "text_pair" in first:
        raise BadInput(source, "has a column text_pair, but this model reads single texts")
    named = [next((first.index(name) for name in _NAMES[column] if name in first), None) for column in wanted]
    known = [column for column in named if column is not None]
    # The label of an example occurs in other rows, that of a header does not.
    labels = [row[len(wanted) - 1] if len(row) >= len(wanted) else "" for _, row in rows]
    if len(known) < len(wanted) and any(labels[:1]) and labels[0] in labels[1:]:
        return list(range(len(wanted))), False
    if (not known and len(first) >= len(wanted)) or (known and len(known) < len(wanted) < len(first)):
        line = ",".join(rows[0][1])[:60]
        name = ",".join(wanted)
        raise BadInput(
            f"{source}:{rows[0][0]}",
            f"{line!r} may be a header or an example: name its columns {name}, or write the line {name} above it",
        )
    free = (column for column in range(max(len(first), len(wanted))) if column not in known)
    return [next(free) if column is None else column for column in named], True


def _in_words(rows: Sequence[Row], wanted: Sequence[str], columns: Sequence[int], header: bool) -> str:
    if not header:
        taken = ", ".join(f"{name} from column {column + 1}" for name, column in zip(wanted, columns, strict=True))
        return f"no header line, its first line is an example; {taken}"
    names = rows[0][1] if rows else []
    cells = [repr(names[column]) if column < len(names) else "none" for column in columns]
    return ", ".join(f"{name} from column {cell}" for name, cell in zip(wanted, cells, strict=True))
