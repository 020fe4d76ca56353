"""The meaning of a model's outputs: one contract for labels, values and embeddings, on every path."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

#: Least positive normal fp32, and the distance from 1 to the fp32 below it: probabilities that round to 0 or 1 have no
#: finite raw output.
_LEAST, _NEXT_TO_ONE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).epsneg)

#: Numbers of one call, up to which Python's lists rank them sooner than NumPy's arrays.
_FEW = 256
#: Rows of one call from which so few labels of each are chosen one after the other, for less than sorting all takes.
_MANY, _CHOSEN = 256, 8


class OutputKind(StrEnum):
    """The conversion of an engine's raw outputs to scores.

    single_label: softmax, one label is true. multi_label: a sigmoid per label, any number are true.
    regression: named values as they are. embedding: a unit-length vector as it is.
    """

    SINGLE_LABEL = "single_label"
    MULTI_LABEL = "multi_label"
    REGRESSION = "regression"
    EMBEDDING = "embedding"


class HeadAnswer(NamedTuple):
    """One head's answer to one text: the kept scores, and the places of their labels, as in `OutputSpec.best`."""

    labels: Sequence[int]
    scores: Sequence[float]
    abstained: bool


class Scoring(Protocol):
    """Turns raw outputs of an engine into scores: one contract, or those of all heads side by side."""

    @property
    def width(self) -> int:
        """Numbers per text."""

    @property
    def uncalibrated(self) -> "Scoring":
        """The same at temperature 1, which never abstains."""

    def scores(self, raw: Floats) -> Floats:
        """Scores (rows, width) from raw outputs; always fp32."""


@dataclass(frozen=True)
class OutputSpec:
    """`names`: labels, or the names of regression values; empty for an embedding. `width`: numbers per text.

    Of labels alone: `temperature` divides the raw outputs before they become probabilities; 1: they are not calibrated.
    An answer of less confidence than `abstain_below`, if that is set, or, of single labels, whose best one is among
    `abstain_on`, is marked as abstained.
    """

    kind: OutputKind
    names: tuple[str, ...]
    width: int
    temperature: float = 1.0
    abstain_below: float | None = None
    abstain_on: tuple[str, ...] = ()

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
        if self.abstain_on and (self.kind is not OutputKind.SINGLE_LABEL or not {*self.abstain_on} < {*self.names}):
            raise ValueError(f"{self.kind} output cannot abstain on {', '.join(self.abstain_on)}")

    @property
    def ranked(self) -> bool:
        """Whether answers hold the best few scores, rather than all in their order."""
        return self.kind in (OutputKind.SINGLE_LABEL, OutputKind.MULTI_LABEL)

    @property
    def uncalibrated(self) -> "OutputSpec":
        """The same at temperature 1, which never abstains."""
        return replace(self, temperature=1.0, abstain_below=None, abstain_on=())

    @property
    def abstains(self) -> bool:
        """Whether any answer may."""
        return self.abstain_below is not None or bool(self.abstain_on)

    @property
    def abstaining(self) -> str:
        """When answers abstain, in words."""
        below = [] if self.abstain_below is None else [f"below {self.abstain_below:g}"]
        return " and ".join([*below, *([f"on {', '.join(self.abstain_on)}"] if self.abstain_on else [])]) or "never"

    def scores(self, raw: Floats) -> Floats:
        """Scores (rows, width) from an engine's raw outputs; always fp32."""
        scores = np.divide(raw, self.temperature, dtype=np.float32)
        self.score(scores)
        return scores

    def score(self, divided: Floats) -> None:
        """Turn raw outputs, divided by the temperature, into scores in place."""
        # Without NumPy's wrappers: of a single text, each operation costs more to start than to run.
        if self.kind is OutputKind.SINGLE_LABEL:
            divided -= np.maximum.reduce(divided, axis=-1, keepdims=True)
            np.exp(divided, out=divided)
            divided /= np.add.reduce(divided, axis=-1, keepdims=True)
        elif self.kind is OutputKind.MULTI_LABEL:
            # The sigmoid by tanh, which does not overflow as exp does.
            divided *= 0.5
            np.tanh(divided, out=divided)
            divided += 1.0
            divided *= 0.5

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
        abstained = np.zeros(len(scores), bool)
        if self.abstain_below is not None:
            abstained |= self.confidence(scores) < self.abstain_below
        if self.abstain_on:
            abstained |= self._stands_for_none[scores.argmax(axis=-1)]
        return abstained

    @cached_property
    def _stands_for_none(self) -> NDArray[np.bool_]:
        """Of each label (width,)."""
        return np.array([name in self.abstain_on for name in self.names])

    def kept(self, k: int) -> int:
        """The number of scores in an answer if `k` are requested."""
        return min(k, self.width) if self.ranked else self.width

    def best(self, scores: Floats, k: int) -> tuple[NDArray[np.int32], Floats]:
        """The kept scores of each row: (indices, scores), both (rows, kept(k)).

        Labels best first, ties by index; other outputs whole and in order.
        """
        if not self.ranked:
            return np.broadcast_to(np.arange(self.width, dtype=np.int32), scores.shape), scores
        many = len(scores) >= _MANY and k <= _CHOSEN
        order = _chosen(scores, k) if many else (-scores).argsort(axis=-1, kind="stable")[:, :k].astype(np.int32)
        return order, scores[np.arange(len(scores))[:, None], order]

    def answers(self, scores: Floats, k: int) -> list[HeadAnswer]:
        """`best` and `abstained` of each row, as Python's numbers."""
        if scores.size > _FEW or self.abstain_below is not None:
            indices, values = self.best(scores, k)
            return list(map(HeadAnswer, indices.tolist(), values.tolist(), self.abstained(scores).tolist()))
        return [self._answer(row, k) for row in scores.tolist()]

    def _answer(self, row: list[float], k: int) -> HeadAnswer:
        if not self.ranked:
            return HeadAnswer(range(self.width), row, False)
        # Reversed sorting is stable, too.
        order = sorted(range(self.width), key=row.__getitem__, reverse=True)[:k]
        return HeadAnswer(order, [row[index] for index in order], self.names[order[0]] in self.abstain_on)


def _chosen(scores: Floats, k: int) -> NDArray[np.int32]:
    """The places of the `k` best scores of each row, (rows, k or fewer), best first, ties by index."""
    left, rows = scores.copy(), np.arange(len(scores))
    places = np.empty((len(scores), min(k, scores.shape[-1])), np.int32)
    for rank in range(places.shape[-1]):
        places[:, rank] = left.argmax(axis=-1)
        left[rows, places[:, rank]] = -np.inf
    return places
