"""The texts to send: real messages if available, else generated ones; all different."""

import csv
import gzip
import itertools
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shared_model import demo_messages
from tests.benchmarks.harness import CannotMeasure
from tests.load import arrivals
from tests.load.arrivals import Times

_BULK_TEXTS = 60_000
#: Far above what a model reads; a request with it fits into one frame.
_MAX_TEXT_BYTES = 8_192


@dataclass(frozen=True)
class Material:
    """Distinct texts, in an order that says nothing; arrivals to replay, seconds from the first.

    `source` says in one line where they come from; `is_recorded`: whether the arrivals are those of real callers.
    """

    interactive: list[str]
    bulk: list[str]
    recorded: Times
    source: str
    is_recorded: bool = False


def load(folder: Path | None, seed: int = 4) -> Material:
    """BANKING77, the IRC corpus and recorded arrivals from `folder`, or messages of our own without one.

    Raises: CannotMeasure naming the file that is missing.
    """
    if folder is None:
        return _own(seed)
    try:
        recorded = arrivals.read(folder / "arrivals" / "conversation.csv")
        interactive = _distinct(itertools.chain(*map(_banking, ("train", "test"), itertools.repeat(folder))))
        bulk = _distinct(_irc(folder / "irc" / "messages.jsonl.gz"))
    except OSError as error:
        raise CannotMeasure(f"{error.filename} cannot be read: {error.strerror}; pass another DATA=DIR") from error
    draw = random.Random(seed)
    draw.shuffle(interactive)
    draw.shuffle(bulk)
    return Material(interactive, bulk[:_BULK_TEXTS], recorded, "BANKING77, the IRC corpus and recorded arrivals", True)


def _own(seed: int) -> Material:
    interactive = _distinct(itertools.islice(demo_messages.texts(seed), 15_000))
    bulk = _distinct(itertools.islice(demo_messages.texts(seed + 1), _BULK_TEXTS))
    return Material(interactive, bulk, arrivals.poisson(5.0, 3_600.0, seed), "messages of our own, Poisson arrivals")


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text for text in texts if text.strip() and len(text.encode()) <= _MAX_TEXT_BYTES))


def _banking(split: str, folder: Path) -> Iterator[str]:
    with (folder / "banking77" / f"{split}.csv").open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            yield row["text"]


def _irc(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]
