"""Texts that a head was trained on, kept beside it so that `build` calibrates INT8 on them. They are private: the file
is for its owner alone, and a release holds only their hash."""

import json
from collections.abc import Sequence
from pathlib import Path

from shared_model.encoding import Text
from shared_model.evaluation import samples
from shared_model.storage import atomic_write

FILE = "training-texts.jsonl"
#: Most texts that are kept: three fifths of them are more than any recipe reads.
_MOST = 2000


def keep(folder: Path, texts: Sequence[Text]) -> int:
    """Replace the kept texts of a head with a sample of these. Returns their number. Raises: OSError."""
    kept = samples.drawn(samples.distinct(texts), _MOST)
    lines = (json.dumps({"text": texts[number]}) + "\n" for number in kept)
    atomic_write(folder / FILE, "".join(lines).encode(), mode=0o600)
    return len(kept)


def remove(folder: Path) -> None:
    """Remove those of an earlier training. Raises: OSError."""
    (folder / FILE).unlink(missing_ok=True)


def find(folder: Path) -> Path | None:
    """The file of a head's kept texts, if it has one."""
    file = folder / FILE
    return file if file.is_file() else None
