"""Tokens of a packed batch that fit a device: found once, then kept on its host."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from batch_job.progress import log
from shared_model.storage import atomic_write, one_line


@dataclass(frozen=True)
class BudgetKey:
    """Everything that a budget depends on. `hardware`: name, memory and driver of the device."""

    release: str
    variant: str
    hardware: str


class TokenBudget:
    """Most tokens of a batch. Halved where a batch does not fit, and for good: another process that holds memory now
    may hold it again, and a batch half as large costs little.

    `folder`: where it is kept, a file for each key; None: nowhere. `find`: measures it.
    """

    def __init__(self, folder: Path | None, key: BudgetKey, find: Callable[[], int]) -> None:
        self._key = key
        digest = hashlib.sha256(json.dumps(asdict(key)).encode()).hexdigest()[:16]
        self._path = folder / f"{digest}.json" if folder else None
        self.tokens = self._read() or self._keep(find())

    def halve(self, tokens: int) -> None:
        """A batch of so many tokens did not fit."""
        if (half := max(1, tokens // 2)) < self.tokens:
            self.tokens = self._keep(half)

    def _read(self) -> int | None:
        """None where nothing usable is kept."""
        try:
            document = json.loads(self._path.read_bytes()) if self._path else {}
            return max(1, int(document["tokens"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _keep(self, tokens: int) -> int:
        if self._path:
            try:
                atomic_write(self._path, json.dumps({**asdict(self._key), "tokens": tokens}, indent=1).encode())
            except OSError as error:
                log(f"{self._path} cannot be written, so the next worker measures again: {one_line(error)}")
        return tokens
