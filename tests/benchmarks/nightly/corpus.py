"""The texts of one night: the IRC corpus where it is at hand, else messages of our own; duplicates and all."""

import gzip
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared_model import demo_messages
from tests.benchmarks.harness import CannotMeasure

#: As many as the corpus holds, so that memory is measured on as much.
_OWN_TEXTS = 221_591


@dataclass(frozen=True)
class Corpus:
    """All texts of a night, in an order that says nothing. `source` says in one line where they come from."""

    texts: list[str]
    source: str


def load(folder: Path | None, seed: int = 6) -> Corpus:
    """The IRC corpus of `folder`, or messages of our own without one. Raises: CannotMeasure naming the missing file."""
    if folder is None:
        texts = list(itertools.islice(demo_messages.texts(seed), _OWN_TEXTS))
        return Corpus(texts, "messages of our own")
    path = folder / "irc" / "messages.jsonl.gz"
    try:
        texts = list(_read(path))
    except OSError as error:
        raise CannotMeasure(f"{path} cannot be read: {error.strerror}; pass another DATA=DIR") from error
    random.Random(seed).shuffle(texts)
    return Corpus(texts, "the IRC corpus (jkkummerfeld/irc-disentanglement, CC BY 4.0)")


def write_day(messages: Path, ds: str, texts: Sequence[str]) -> None:
    """A partition of one file."""
    folder = messages / f"ds={ds}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "messages.jsonl").open("w", encoding="utf-8") as lines:
        for number, text in enumerate(texts):
            lines.write(json.dumps({"id": f"m{number:07d}", "text": text}) + "\n")


def _read(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]
