"""The batches that engines take, and how each kind is cut.

An engine declares one of two rules. `buckets`: the rows of a batch share a padded width, at which CPU engines give the
same bits in any batch (`encoding.plan_batches`). `packed`: texts of any lengths lie one behind the other without
padding, and attention keeps them apart; such batches are cut by tokens alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shared_model.encoding import Encoding, TokenBatch

#: Tokens of a packed batch: enough to fill a GPU, and more only for less launch cost.
LEAST_PACKED_TOKENS, MOST_PACKED_TOKENS = 32_768, 131_072


class Batching(StrEnum):
    BUCKETS = "buckets"
    PACKED = "packed"


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Arrays are int64. `ids`: the tokens of all rows. `lengths`: tokens of each row. `types`: as in Encoding."""

    ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    types: NDArray[np.int64] | None = None

    @classmethod
    def of_padded(cls, batch: TokenBatch) -> "PackedBatch":
        tokens = batch.mask == 1
        types = None if batch.types is None else batch.types[tokens]
        return cls(batch.ids[tokens], batch.mask.sum(axis=1), types)

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def size(self) -> int:
        """Tokens that run."""
        return len(self.ids)

    def __str__(self) -> str:
        return f"{self.rows} rows of {self.size} tokens together"


Batch = TokenBatch | PackedBatch


class Running(Protocol):
    """A batch that a device has begun to compute."""

    @property
    def seconds(self) -> float:
        """Time that the device computed; known after `result`."""

    def result(self) -> NDArray[np.float32]:
        """Wait for the raw outputs, (rows, width)."""


@dataclass(frozen=True)
class Finished:
    """A batch that was computed at once."""

    raw: NDArray[np.float32]
    seconds: float

    def result(self) -> NDArray[np.float32]:
        return self.raw


def pack(encodings: Sequence[Encoding]) -> PackedBatch:
    """Texts as one packed batch, in their order."""
    lengths = np.array([encoding.tokens for encoding in encodings], np.int64)
    types = None
    if encodings[0].types is not None:
        types = np.concatenate([it.types for it in encodings if it.types is not None]).astype(np.int64)
    return PackedBatch(np.concatenate([it.ids for it in encodings]).astype(np.int64), lengths, types)


def packed_ends(lengths: Sequence[int], budget: int) -> list[int]:
    """Where batches of consecutive rows end that hold as many as fit `budget` tokens; a longer row is alone."""
    total, ends, before = np.cumsum(lengths), list[int](), 0
    while (start := ends[-1] if ends else 0) < len(lengths):
        ends.append(max(start + 1, int(np.searchsorted(total, before + budget, side="right"))))
        before = int(total[ends[-1] - 1])
    return ends


def fitting_tokens(room: float, bytes_per_token: float) -> int:
    """Tokens of a packed batch for `room` bytes: the most of which a half, a quarter, … fits, at least one."""
    tokens = MOST_PACKED_TOKENS
    while tokens > 1 and tokens * bytes_per_token > room:
        tokens //= 2
    return tokens
