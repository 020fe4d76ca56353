"""How long a batch takes: τ(rows, tokens) = base + per_row · rows + per_token · rows · tokens, in seconds.

Fitted to measurements at warm-up; a factor follows the machine as it runs, because neighbours and clock rates change.
A single text takes what was measured for its padded width: engines may be compiled for some widths and not for others.
"""

import copy
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

#: Weight of one observation in the running factor: about the last twenty batches count.
_SMOOTHING = 0.1
_FACTOR_BOUNDS = (0.25, 8.0)
#: Times as slow, or as fast, as predicted that one observation may count.
_MOST_AT_ONCE = 2.0
#: Seconds around a batch, at most, that one observation may count.
_MOST_AROUND = 0.010
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


class Profile:
    """Predicts one engine's service time. Not shared between engines. `singles`: seconds of a single text by tokens."""

    def __init__(
        self, base: float, per_row: float, per_token: float, singles: Mapping[int, float] | None = None
    ) -> None:
        self._base = base
        self._per_row = per_row
        self._per_token = per_token
        self._singles = dict(singles or {})
        self._factor = 1.0
        self._around = 0.0
        self._errors: deque[float] = deque(maxlen=_ERRORS_KEPT)
        self._unjudged = 0
        self._margin = _MIN_MARGIN

    @classmethod
    def fit(cls, measurements: Sequence[Measurement]) -> "Profile":
        profile = cls(0.0, 0.0, 0.0)
        profile.refit(measurements)
        return profile

    @classmethod
    def of_singles(cls) -> "Profile":
        """Nothing is fast enough yet: single texts of some widths will be told by `replace_single`."""
        return cls(math.inf, 0.0, 0.0)

    def refit(self, measurements: Sequence[Measurement]) -> None:
        """Least squares on relative error, so that small batches are predicted as well as large ones.

        Single texts among them replace what is known of their widths.
        """
        seconds = np.array([m.seconds for m in measurements])
        terms = np.array([[1.0, m.rows, m.rows * m.tokens] for m in measurements])
        solution, *_ = np.linalg.lstsq(terms / seconds[:, None], np.ones(len(seconds)), rcond=None)
        self._base, self._per_row, self._per_token = (max(0.0, float(value)) / self._factor for value in solution)
        for single in (m for m in measurements if m.rows == 1):
            self.replace_single(single.tokens, single.seconds)

    @property
    def margin(self) -> float:
        """Seconds to keep free before a deadline: p99 of the prediction's error, at least 3 ms."""
        return self._margin

    def predict(self, rows: int, tokens: int) -> float:
        """Seconds a batch of `rows` rows, each padded to `tokens`, is expected to take."""
        return self._around + self._factor * self._measured(rows, tokens)

    def share(self, tokens: int) -> float:
        """Seconds one more row adds to a batch that runs anyway."""
        return self._factor * (self._per_row + self._per_token * tokens)

    def replace_single(self, tokens: int, seconds: float) -> None:
        """A single text of this width takes this long from now on: the engine was compiled for it."""
        self._singles[tokens] = seconds / self._factor

    def observe(self, rows: int, tokens: int, seconds: float, around: float = 0.0) -> None:
        """Refit to a batch that took `seconds` of an engine, and `around` on the way there and back.

        The second is the same for a short text and a long one: it is added, never multiplied.
        """
        self._errors.append(seconds + around - self.predict(rows, tokens))
        self._around += _SMOOTHING * (min(around, _MOST_AROUND) - self._around)
        predicted = self._factor * self._measured(rows, tokens)
        low, high = _FACTOR_BOUNDS
        # One that was held up by something else must not close the door to all that come after it.
        ratio = min(_MOST_AT_ONCE, max(1 / _MOST_AT_ONCE, seconds / max(predicted, 1e-9)))
        self._factor = min(high, max(low, self._factor * (1 - _SMOOTHING + _SMOOTHING * ratio)))
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

    narrow: Profile
    wide: Profile | None = None
    rows: Callable[[int], Sequence[int]] = lambda tokens: (1, 2, 4, 8, 16, 32, 64)

    def copy(self, wide: Profile | None) -> "Speeds":
        """The same for now, to learn apart, and offered `wide`."""
        return Speeds(copy.deepcopy(self.narrow), wide, self.rows)

    def rows_below(self, rows: int, tokens: int) -> int:
        """The largest size worth making of `rows` texts that wait."""
        return max(size for size in self.rows(tokens) if size <= rows)
