"""How long a batch takes: τ(rows, tokens) = base + per_row · rows + per_token · rows · tokens, in seconds.

Fitted to measurements at warm-up; a factor follows the machine as it runs, because neighbours and clock rates change.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Weight of one observation in the running factor: about the last twenty batches count.
_SMOOTHING = 0.1
_FACTOR_BOUNDS = (0.25, 8.0)
_MIN_MARGIN = 0.003
_ERRORS_KEPT = 256


@dataclass(frozen=True, slots=True)
class Measurement:
    """One timed batch of shape (rows, tokens)."""

    rows: int
    tokens: int
    seconds: float


class Profile:
    """Predicts one engine's service time. Not shared between engines."""

    def __init__(self, base: float, per_row: float, per_token: float) -> None:
        self._base = base
        self._per_row = per_row
        self._per_token = per_token
        self._factor = 1.0
        self._errors: deque[float] = deque(maxlen=_ERRORS_KEPT)
        self._margin = _MIN_MARGIN

    @classmethod
    def fit(cls, measurements: Sequence[Measurement]) -> "Profile":
        """Least squares on relative error, so that batch 1 is predicted as well as batch 64."""
        seconds = np.array([m.seconds for m in measurements])
        terms = np.array([[1.0, m.rows, m.rows * m.tokens] for m in measurements])
        solution, *_ = np.linalg.lstsq(terms / seconds[:, None], np.ones(len(seconds)), rcond=None)
        base, per_row, per_token = (max(0.0, float(value)) for value in solution)
        return cls(base, per_row, per_token)

    @property
    def margin(self) -> float:
        """Seconds to keep free before a deadline: p99 of the prediction's error, at least 3 ms."""
        return self._margin

    def predict(self, rows: int, tokens: int) -> float:
        """Seconds a batch of `rows` rows, each padded to `tokens`, is expected to take."""
        return self._factor * (self._base + self._per_row * rows + self._per_token * rows * tokens)

    def share(self, tokens: int) -> float:
        """Seconds one more row adds to a batch that runs anyway."""
        return self._factor * (self._per_row + self._per_token * tokens)

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """Refit to a batch that took `seconds`."""
        predicted = self.predict(rows, tokens)
        self._errors.append(seconds - predicted)
        low, high = _FACTOR_BOUNDS
        ratio = seconds / max(predicted, 1e-9)
        self._factor = min(high, max(low, self._factor * (1 - _SMOOTHING + _SMOOTHING * ratio)))
        if len(self._errors) % 16 == 0:
            worst = float(np.quantile(np.fromiter(self._errors, float), 0.99))
            # An outlier of the machine's must not close the door: the margin never takes more than a lane's unit.
            self._margin = min(max(_MIN_MARGIN, worst), 0.010)
