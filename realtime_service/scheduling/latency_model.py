"""How long a batch takes: τ(rows, tokens) = base + per_row · rows + per_token · rows · tokens, in seconds.

The model is fitted to measurements at warm-up. A single text of a measured padded width, and two that share a call
compiled for that, are predicted to take their measured time, because engines are compiled for some widths only. Online
recalibration maps times at warm-up to current times by a line (`_Recalibration`).
"""

import copy
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

#: Weight of one observation: about the last twenty batches count.
_SMOOTHING = 0.1
_SLOPE_BOUNDS = (0.25, 8.0)
#: An observation counts as at most this many times slower or faster than predicted.
_MOST_AT_ONCE = 2.0
#: Weight of the prior slope of 1: the spread of batch times, as a share of their mean, that weighs as much as it.
_PRIOR_SPREAD = 0.25
#: Bounds of the safety margin before a deadline, in seconds.
_MIN_MARGIN, _MAX_MARGIN = 0.003, 0.010
_ERRORS_KEPT = 256
#: Errors between two computations of their quantile, which costs as much as the rest of a request's scheduling.
_ERRORS_PER_MARGIN = 32


@dataclass(frozen=True, slots=True)
class Measurement:
    """One timed batch of shape (rows, tokens)."""

    rows: int
    tokens: int
    seconds: float


class _Recalibration:
    """seconds = offset + slope · measured, followed by observations: exponentially weighted least squares.

    A slower machine slows all batches in proportion: a slope. Cold caches and the hand-over to a stream cost a short
    batch as much as a long one: an offset. Only batches of different lengths tell the two apart; until enough of them
    ran, the difference counts as offset, so that slow short texts do not raise the prediction for long ones.
    """

    def __init__(self) -> None:
        self.slope = 1.0
        self._measured = self._seconds = self._variance = self._covariance = 0.0

    def apply(self, measured: float) -> float:
        return max(self._seconds + self.slope * (measured - self._measured), measured * _SLOPE_BOUNDS[0])

    def undo(self, seconds: float) -> float:
        """The time at warm-up that corresponds to `seconds` now."""
        return max(0.0, self._measured + (seconds - self._seconds) / self.slope)

    def observe(self, measured: float, seconds: float) -> None:
        if not self._measured:
            self._measured = self._seconds = measured
        more, later, rest = measured - self._measured, seconds - self._seconds, 1 - _SMOOTHING
        self._measured += _SMOOTHING * more
        self._seconds += _SMOOTHING * later
        self._variance = rest * (self._variance + _SMOOTHING * more * more)
        self._covariance = rest * (self._covariance + _SMOOTHING * more * later)
        prior = (_PRIOR_SPREAD * self._measured) ** 2
        low, high = _SLOPE_BOUNDS
        self.slope = min(high, max(low, (self._covariance + prior) / (self._variance + prior)))


class LatencyModel:
    """Predicts the service time of one engine. `singles`: seconds of a single text by tokens."""

    def __init__(
        self, base: float, per_row: float, per_token: float, singles: Mapping[int, float] | None = None
    ) -> None:
        self._base = base
        self._per_row = per_row
        self._per_token = per_token
        self._known = {(1, tokens): seconds for tokens, seconds in (singles or {}).items()}
        self._recalibration = _Recalibration()
        self._errors: deque[float] = deque(maxlen=_ERRORS_KEPT)
        self._errors_since_margin = 0
        self._margin = _MIN_MARGIN

    @classmethod
    def fit(cls, measurements: Sequence[Measurement]) -> "LatencyModel":
        latency_model = cls(0.0, 0.0, 0.0)
        latency_model.refit(measurements)
        return latency_model

    @classmethod
    def of_singles(cls) -> "LatencyModel":
        """A model that predicts an infinite time until `replace` sets that of a width."""
        return cls(math.inf, 0.0, 0.0)

    def refit(self, measurements: Sequence[Measurement]) -> None:
        """Least squares on relative error, so that small batches are predicted as well as large ones.

        Single texts among the measurements replace the times of their widths.
        """
        seconds = np.array([m.seconds for m in measurements])
        terms = np.array([[1.0, m.rows, m.rows * m.tokens] for m in measurements])
        solution, *_ = np.linalg.lstsq(terms / seconds[:, None], np.ones(len(seconds)), rcond=None)
        self._base, self._per_row, self._per_token = (max(0.0, float(value)) for value in solution)
        for single in (m for m in measurements if m.rows == 1):
            self.replace(single)

    @property
    def margin(self) -> float:
        """Seconds to keep free before a deadline: p99 of the prediction error, between 3 and 10 ms."""
        return self._margin

    def predict(self, rows: int, tokens: int) -> float:
        """Predicted seconds of a batch of `rows` rows, each padded to `tokens`."""
        return self._recalibration.apply(self.at_warm_up(rows, tokens))

    def at_least(self, rows: int, tokens: float) -> float:
        """As `predict`, for rows of `tokens` or more on average: a wider one may have been measured as quicker."""
        known = [seconds for (of, width), seconds in self._known.items() if of == rows and width >= tokens]
        return self._recalibration.apply(min([self._fitted(rows, tokens), *known]))

    def replace(self, timed: Measurement) -> None:
        """Set the time of a shape, after the engine was compiled for it."""
        self._known[timed.rows, timed.tokens] = self._recalibration.undo(timed.seconds)

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """Recalibrate to a batch that took so many seconds, the hand-over to its stream included."""
        predicted = self.predict(rows, tokens)
        self._errors.append(seconds - predicted)
        # Clipped: otherwise one batch that the machine delayed makes admission control reject those after it.
        clipped = min(predicted * _MOST_AT_ONCE, max(predicted / _MOST_AT_ONCE, seconds))
        self._recalibration.observe(self.at_warm_up(rows, tokens), clipped)
        self._errors_since_margin += 1
        if self._errors_since_margin == _ERRORS_PER_MARGIN:
            self._errors_since_margin = 0
            worst = sorted(self._errors)[math.ceil(0.99 * len(self._errors)) - 1]
            self._margin = min(max(_MIN_MARGIN, worst), _MAX_MARGIN)

    def at_warm_up(self, rows: int, tokens: int) -> float:
        """The time of such a batch as measured or fitted at warm-up."""
        if (known := self._known.get((rows, tokens))) is not None:
            return known
        return self._fitted(rows, tokens)

    def _fitted(self, rows: int, tokens: float) -> float:
        return self._base + self._per_row * rows + self._per_token * rows * tokens


@dataclass(frozen=True, eq=False, slots=True)
class VariantLatency:
    """The latency models of one variant of one release.

    `narrow`: of a call on one stream; `wide`: of a call on all cores, None where that is the same or not offered.
    `rows`: the batch sizes that the engine is warmed for, by tokens.
    """

    narrow: LatencyModel
    wide: LatencyModel | None = None
    rows: Callable[[int], Sequence[int]] = lambda tokens: (1, 2, 4, 8, 16, 32, 64)

    def copy(self, wide: LatencyModel | None, rows: Callable[[int], Sequence[int]]) -> "VariantLatency":
        """A copy with these `wide` and `rows` that is recalibrated independently."""
        return VariantLatency(copy.deepcopy(self.narrow), wide, rows)

    def share(self, rows: int, tokens: int) -> float:
        """Predicted seconds that a text takes of one stream in the largest warmed batch of at most `rows`."""
        rows = self.rows_below(rows, tokens)
        return self.narrow.predict(rows, tokens) / rows

    def rows_below(self, rows: int, tokens: int) -> int:
        """The largest warmed batch size for `rows` queued texts."""
        if rows == 1:
            return 1
        return max(size for size in self.rows(tokens) if size <= rows)
