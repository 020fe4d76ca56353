"""How long a batch takes: τ(rows, tokens) = base + per_row · rows + per_token · rows · tokens, in seconds.

Fitted to measurements at warm-up, where a single text takes what was measured for its padded width: engines may be
compiled for some widths and not for others. As it runs, a line (`_Drift`) leads from what was measured to what it takes
now.
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
#: Times as slow, or as fast, as predicted that one observation may count.
_MOST_AT_ONCE = 2.0
#: How much batches must have differed, as a share of their mean, to tell a slope as much as is believed beforehand.
_TELLING_SPREAD = 0.25
_MIN_MARGIN = 0.003
_ERRORS_KEPT = 256
#: Errors between two looks at their quantile, which takes as long as the rest of a request's scheduling.
_JUDGED_TOGETHER = 32


@dataclass(frozen=True, slots=True)
class Measurement:
    """One timed batch of shape (rows, tokens)."""

    rows: int
    tokens: int
    seconds: float


class _Drift:
    """seconds = offset + slope · measured, followed by observations: exponentially weighted least squares.

    A machine that is slower than at the warm-up makes all batches slower in proportion: a slope. Caches that others
    have emptied, and the way to a stream and back, cost a short batch as much as a long one: an offset. Which of both
    it is only batches of different lengths can tell; until they have, it is the offset, so that short texts on a busy
    machine do not make long ones look as if they took for ever.
    """

    def __init__(self) -> None:
        self.slope = 1.0
        self._measured = self._seconds = self._variance = self._covariance = 0.0

    def apply(self, measured: float) -> float:
        return max(self._seconds + self.slope * (measured - self._measured), measured * _SLOPE_BOUNDS[0])

    def undo(self, seconds: float) -> float:
        """What was measured, if it takes so many seconds now."""
        return max(0.0, self._measured + (seconds - self._seconds) / self.slope)

    def observe(self, measured: float, seconds: float) -> None:
        if not self._measured:
            self._measured = self._seconds = measured
        more, later, rest = measured - self._measured, seconds - self._seconds, 1 - _SMOOTHING
        self._measured += _SMOOTHING * more
        self._seconds += _SMOOTHING * later
        self._variance = rest * (self._variance + _SMOOTHING * more * more)
        self._covariance = rest * (self._covariance + _SMOOTHING * more * later)
        believed = (_TELLING_SPREAD * self._measured) ** 2
        low, high = _SLOPE_BOUNDS
        self.slope = min(high, max(low, (self._covariance + believed) / (self._variance + believed)))


class LatencyModel:
    """Predicts one engine's service time. Not shared between engines. `singles`: seconds of a single text by tokens."""

    def __init__(
        self, base: float, per_row: float, per_token: float, singles: Mapping[int, float] | None = None
    ) -> None:
        self._base = base
        self._per_row = per_row
        self._per_token = per_token
        self._singles = dict(singles or {})
        self._drift = _Drift()
        self._errors: deque[float] = deque(maxlen=_ERRORS_KEPT)
        self._unjudged = 0
        self._margin = _MIN_MARGIN

    @classmethod
    def fit(cls, measurements: Sequence[Measurement]) -> "LatencyModel":
        profile = cls(0.0, 0.0, 0.0)
        profile.refit(measurements)
        return profile

    @classmethod
    def of_singles(cls) -> "LatencyModel":
        """Nothing is fast enough yet: single texts of some widths will be told by `replace_single`."""
        return cls(math.inf, 0.0, 0.0)

    def refit(self, measurements: Sequence[Measurement]) -> None:
        """Least squares on relative error, so that small batches are predicted as well as large ones.

        Single texts among them replace what is known of their widths.
        """
        seconds = np.array([m.seconds for m in measurements])
        terms = np.array([[1.0, m.rows, m.rows * m.tokens] for m in measurements])
        solution, *_ = np.linalg.lstsq(terms / seconds[:, None], np.ones(len(seconds)), rcond=None)
        self._base, self._per_row, self._per_token = (max(0.0, float(value)) for value in solution)
        for single in (m for m in measurements if m.rows == 1):
            self.replace_single(single.tokens, single.seconds)

    @property
    def margin(self) -> float:
        """Seconds to keep free before a deadline: p99 of the prediction's error, at least 3 ms."""
        return self._margin

    def predict(self, rows: int, tokens: int) -> float:
        """Seconds a batch of `rows` rows, each padded to `tokens`, is expected to take."""
        return self._drift.apply(self._measured(rows, tokens))

    def share(self, tokens: int) -> float:
        """Seconds one more row adds to a batch that runs anyway."""
        return self._drift.slope * (self._per_row + self._per_token * tokens)

    def replace_single(self, tokens: int, seconds: float) -> None:
        """A single text of this width takes this long from now on: the engine was compiled for it."""
        self._singles[tokens] = self._drift.undo(seconds)

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """Refit to a batch that took so many seconds, the way to a stream and back included."""
        predicted = self.predict(rows, tokens)
        self._errors.append(seconds - predicted)
        # One that was held up by something else must not close the door to all that come after it.
        believed = min(predicted * _MOST_AT_ONCE, max(predicted / _MOST_AT_ONCE, seconds))
        self._drift.observe(self._measured(rows, tokens), believed)
        self._unjudged += 1
        if self._unjudged == _JUDGED_TOGETHER:
            self._unjudged = 0
            worst = float(np.quantile(np.fromiter(self._errors, float), 0.99))
            # An outlier of the machine's must not close the door: the margin never takes more than a lane's unit.
            self._margin = min(max(_MIN_MARGIN, worst), 0.010)

    def _measured(self, rows: int, tokens: int) -> float:
        """What it took at the warm-up."""
        if rows == 1 and tokens in self._singles:
            return self._singles[tokens]
        return self._base + self._per_row * rows + self._per_token * rows * tokens


@dataclass(frozen=True, eq=False, slots=True)
class Speeds:
    """How fast one variant of one release is.

    `narrow` when each stream runs a call of its own, `wide` when one call has all cores, None where that is the same or
    not offered. `rows`: sizes of batches worth making, by tokens.
    """

    narrow: LatencyModel
    wide: LatencyModel | None = None
    rows: Callable[[int], Sequence[int]] = lambda tokens: (1, 2, 4, 8, 16, 32, 64)

    def copy(self, wide: LatencyModel | None) -> "Speeds":
        """The same for now, to learn apart, and offered `wide`."""
        return Speeds(copy.deepcopy(self.narrow), wide, self.rows)

    def rows_below(self, rows: int, tokens: int) -> int:
        """The largest size worth making of `rows` texts that wait."""
        return max(size for size in self.rows(tokens) if size <= rows)
