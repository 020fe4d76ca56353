"""The meaning of a model's outputs: one contract for labels, values and embeddings, on every path."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class OutputKind(StrEnum):
    """The conversion of an engine's raw outputs to scores.

    single_label: softmax, one label is true. multi_label: a sigmoid per label, any number are true.
    regression: named values as they are. embedding: a unit-length vector as it is.
    """

    SINGLE_LABEL = "single_label"
    MULTI_LABEL = "multi_label"
    REGRESSION = "regression"
    EMBEDDING = "embedding"


class Scoring(Protocol):
    """Turns raw outputs of an engine into scores: one contract, or those of all heads side by side."""

    @property
    def width(self) -> int:
        """Numbers per text."""

    def scores(self, raw: Floats) -> Floats:
        """Scores (rows, width) from raw outputs; always fp32."""


@dataclass(frozen=True)
class OutputSpec:
    """`names`: labels, or the names of regression values; empty for an embedding. `width`: numbers per text."""

    kind: OutputKind
    names: tuple[str, ...]
    width: int

    def __post_init__(self) -> None:
        named = 0 if self.kind is OutputKind.EMBEDDING else self.width
        fewest = 2 if self.kind is OutputKind.SINGLE_LABEL else 1
        if len(self.names) != named or len(set(self.names)) != named or self.width < fewest:
            raise ValueError(f"{self.kind} output of width {self.width} cannot have {len(set(self.names))} names")

    @property
    def ranked(self) -> bool:
        """Whether answers hold the best few scores, rather than all in their order."""
        return self.kind in (OutputKind.SINGLE_LABEL, OutputKind.MULTI_LABEL)

    def scores(self, raw: Floats) -> Floats:
        """Scores (rows, width) from an engine's raw outputs; always fp32."""
        # In place and without NumPy's wrappers: of a single text, each operation costs more to start than to run.
        if self.kind is OutputKind.SINGLE_LABEL:
            scores = np.subtract(raw, np.maximum.reduce(raw, axis=-1, keepdims=True), dtype=np.float32)
            np.exp(scores, out=scores)
            scores /= np.add.reduce(scores, axis=-1, keepdims=True)
            return scores
        if self.kind is OutputKind.MULTI_LABEL:
            # The sigmoid by tanh, which does not overflow as exp does.
            scores = np.multiply(raw, 0.5, dtype=np.float32)
            np.tanh(scores, out=scores)
            scores += 1.0
            scores *= 0.5
            return scores
        return np.asarray(raw, dtype=np.float32)

    def kept(self, k: int) -> int:
        """The number of scores in an answer if `k` are requested."""
        return min(k, self.width) if self.ranked else self.width

    def best(self, scores: Floats, k: int) -> tuple[NDArray[np.int32], Floats]:
        """The kept scores of each row: (indices, scores), both (rows, kept(k)).

        Labels best first, ties by index; other outputs whole and in order.
        """
        if not self.ranked:
            return np.broadcast_to(np.arange(self.width, dtype=np.int32), scores.shape), scores
        order = (-scores).argsort(axis=-1, kind="stable")[:, :k]
        return order.astype(np.int32), scores[np.arange(len(scores))[:, None], order]
