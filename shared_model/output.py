"""The meaning of a model's outputs: one contract for labels, values and embeddings, on every path."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

#: Least positive normal fp32, and the distance from 1 to the fp32 below it: probabilities that round to 0 or 1 have no
#: finite raw output.
_LEAST, _NEXT_TO_ONE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).epsneg)


class OutputKind(StrEnum):
    """The conversion of an engine's raw outputs to scores.

    single_label: softmax, one label is true. multi_label: a sigmoid per label, any number are true.
    regression: named values as they are. embedding: a unit-length vector as it is.
    """

    SINGLE_LABEL = "single_label"
    MULTI_LABEL = "multi_label"
    REGRESSION = "regression"
    EMBEDDING = "embedding"


@dataclass(frozen=True)
class OutputSpec:
    """`names`: labels, or the names of regression values; empty for an embedding. `width`: numbers per text.

    Of labels alone: `temperature` divides the raw outputs before they become probabilities; 1: they are not calibrated.
    `abstain_below`: an answer of less confidence than this is marked as abstained; None: none is.
    """

    kind: OutputKind
    names: tuple[str, ...]
    width: int
    temperature: float = 1.0
    abstain_below: float | None = None

    def __post_init__(self) -> None:
        named = 0 if self.kind is OutputKind.EMBEDDING else self.width
        fewest = 2 if self.kind is OutputKind.SINGLE_LABEL else 1
        if len(self.names) != named or len(set(self.names)) != named or self.width < fewest:
            raise ValueError(f"{self.kind} output of width {self.width} cannot have {len(set(self.names))} names")
        below = 1.0 if self.abstain_below is None else self.abstain_below
        if not 0 < self.temperature < math.inf or not 0 < below <= 1:
            raise ValueError(f"temperature {self.temperature}, abstain_below {self.abstain_below}")
        if not self.ranked and (self.temperature, self.abstain_below) != (1, None):
            raise ValueError(f"{self.kind} output has no probabilities to calibrate or to abstain by")

    @property
    def ranked(self) -> bool:
        """Whether answers hold the best few scores, rather than all in their order."""
        return self.kind in (OutputKind.SINGLE_LABEL, OutputKind.MULTI_LABEL)

    @property
    def uncalibrated(self) -> "OutputSpec":
        """The same at temperature 1, which never abstains."""
        return replace(self, temperature=1.0, abstain_below=None)

    def scores(self, raw: Floats) -> Floats:
        """Scores (rows, width) from an engine's raw outputs; always fp32."""
        if self.temperature != 1:
            raw = raw / self.temperature
        if self.kind is OutputKind.SINGLE_LABEL:
            shifted = np.exp(raw - raw.max(axis=-1, keepdims=True))
            return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True), dtype=np.float32)
        if self.kind is OutputKind.MULTI_LABEL:
            # The sigmoid by tanh, which does not overflow as exp does.
            return np.asarray(0.5 * (1.0 + np.tanh(0.5 * raw)), dtype=np.float32)
        return np.asarray(raw, dtype=np.float32)

    def raw(self, scores: Floats) -> Floats:
        """Raw outputs that have these scores at temperature 1: those of an engine, less a constant in each row."""
        if self.kind is OutputKind.SINGLE_LABEL:
            return np.log(np.maximum(scores, _LEAST))
        if self.kind is OutputKind.MULTI_LABEL:
            inside = np.clip(scores, _LEAST, 1 - _NEXT_TO_ONE)
            return np.asarray(np.log(inside) - np.log1p(-inside))
        return scores

    def recalibrated(self, scores: Floats) -> Floats:
        """Scores at this temperature from those at temperature 1."""
        return scores if self.temperature == 1 else self.scores(self.raw(scores))

    def confidence(self, scores: Floats) -> Floats:
        """Of each row (rows,): the probability of its best label; multi-label: the least probability, over all labels,
        that the label is as answered. 1 without labels."""
        if self.kind is OutputKind.SINGLE_LABEL:
            return np.asarray(scores.max(axis=-1))
        if self.kind is OutputKind.MULTI_LABEL:
            return np.asarray(np.maximum(scores, 1 - scores).min(axis=-1))
        return np.ones(len(scores), np.float32)

    def abstained(self, scores: Floats) -> NDArray[np.bool_]:
        """Whether each row's answer abstains, (rows,). `scores`: all of each row (rows, width)."""
        if self.abstain_below is None:
            return np.zeros(len(scores), bool)
        return np.asarray(self.confidence(scores) < self.abstain_below)

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
