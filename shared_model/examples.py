"""Labelled examples from a CSV: text,label; or text,text_pair,label for a model that reads pairs."""

import csv
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared_model.encoding import Text
from shared_model.errors import BadInput


@dataclass(frozen=True)
class Examples:
    """Texts and their labels, one by one. `places`: FILE:LINE of each. `sha256`: of the file."""

    texts: list[Text]
    labels: list[str]
    places: list[str]
    sha256: str


def read_examples(path: Path, pairs: bool = False, unlabelled: bool = False) -> Examples:
    """Read a CSV with a header line. Raises: BadInput naming the file and line; OSError if it cannot be read.

    Columns are found by their names; where the header has others, they are text[, text_pair], label in this order.
    `unlabelled`: an empty label is one too, as where any number of labels may be true.
    """
    raw = path.read_bytes()
    try:
        contents = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(str(path), "is not UTF-8") from error
    # The csv module must see line ends as they are: a quoted text may hold some.
    reader = csv.reader(io.StringIO(contents, newline=""), strict=True)
    found = Examples([], [], [], hashlib.sha256(raw).hexdigest())
    _parse(reader, found, str(path), pairs, unlabelled)
    if not found.texts:
        raise BadInput(str(path), "has no examples under its header line")
    return found


def _parse(reader: Any, found: Examples, source: str, pairs: bool, unlabelled: bool) -> None:
    try:
        columns = _columns(next(reader, []), source, pairs)
        for row in reader:
            place = f"{source}:{reader.line_num}"
            cells = [row[column] if column < len(row) else "" for column in columns]
            needed = cells[:-1] if unlabelled else cells
            if not all(cell.strip() for cell in needed):
                raise BadInput(place, f"needs {'two texts' if pairs else 'a text'} and a label")
            found.texts.append((cells[0], cells[1]) if pairs else cells[0])
            found.labels.append(cells[-1])
            found.places.append(place)
    except csv.Error as error:
        raise BadInput(f"{source}:{reader.line_num}", str(error)) from error


def _columns(header: Sequence[str], source: str, pairs: bool) -> list[int]:
    if not pairs and "text_pair" in header:
        raise BadInput(source, "has a column text_pair, but this model reads single texts")
    wanted = ("text", "text_pair", "label") if pairs else ("text", "label")
    if all(name in header for name in wanted):
        return [header.index(name) for name in wanted]
    return list(range(len(wanted)))
