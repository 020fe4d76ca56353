"""Samples of the texts that a model will see: read from a file, made distinct, and drawn from."""

import json
import re
import unicodedata
from collections.abc import Collection, Hashable, Iterable, Sequence
from pathlib import Path

import numpy as np

from shared_model.encoding import InputSpec, Text
from shared_model.errors import BadInput
from shared_model.evaluation.examples import read_examples

#: JSON can contain lone surrogates, which UTF-8 cannot encode.
_SURROGATE = re.compile("[\ud800-\udfff]")
_SEED = 401


def read(path: Path, reads: InputSpec, least: int) -> tuple[list[Text], list[str]]:
    """The texts of a JSON Lines or CSV file, and FILE:LINE of each, without the folder.

    Raises: BadInput naming the file and line, or for fewer than `least` lines; OSError if it cannot be read.
    """
    if path.suffix.lower() == ".csv":
        examples = read_examples(path, reads.pairs, unlabelled=True)
        found, places = examples.texts, [place.removeprefix(f"{path.parent}/") for place in examples.places]
        _check_enough(path, len(found), least)
        return found, places
    lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    _check_enough(path, len(lines), least)
    found = [_text(line, f"{path}:{number}", reads) for number, line in enumerate(lines, 1)]
    return found, [f"{path.name}:{number}" for number in range(1, len(lines) + 1)]


def normalised(text: Text) -> Hashable:
    """Equal for texts that differ only in case, white space, or the way Unicode writes the same characters."""
    if isinstance(text, str):
        return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).split())
    return tuple(map(normalised, text))


def distinct(texts: Iterable[Text], barred: Collection[Hashable] = ()) -> list[int]:
    """Indices of the texts whose normalised form is neither barred nor that of an earlier text."""
    seen, kept = set(barred), []
    for index, text in enumerate(texts):
        form = normalised(text)
        if form not in seen:
            seen.add(form)
            kept.append(index)
    return kept


def drawn(numbers: Sequence[int], most: int) -> list[int]:
    """At most `most` of them, in a fixed pseudo-random order: the beginning of a log differs from its end."""
    order = np.random.default_rng(_SEED).permutation(len(numbers))[:most]
    return [numbers[index] for index in order.tolist()]


def _check_enough(path: Path, lines: int, least: int) -> None:
    if lines < least:
        raise BadInput(str(path), f"has {lines} lines, calibrating needs at least {least}")


def _text(line: bytes, place: str, reads: InputSpec) -> Text:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise BadInput(place, "is not JSON") from error
    wanted = ("text", "text_pair") if reads.pairs else ("text",)
    found = [record.get(name) for name in wanted] if isinstance(record, dict) else []
    texts = [text for text in found if isinstance(text, str) and text.strip() and not _SURROGATE.search(text)]
    if len(texts) < len(wanted):
        raise BadInput(place, f"needs {' and '.join(wanted)}, each a text")
    if not reads.pairs and "text_pair" in record:
        raise BadInput(place, "has a text_pair, but this model reads single texts")
    return (texts[0], texts[1]) if reads.pairs else texts[0]
