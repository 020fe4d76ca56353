"""The outcomes of the calls of one load, and the figures derived from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.harness import CannotMeasure

OK = 0
RESOURCE_EXHAUSTED = 8

#: A p95 of fewer calls is not one: at 95 % confidence of the tail this many calls allow 50 above the bound.
LEAST_CALLS = 1_372
#: Latency of a call that failed or was late: higher than any bound.
MISSED_MS = 10_000.0
#: Sends later than this (p99) make the generator part of what is measured.
LATE_MS = 5.0


@dataclass(frozen=True)
class Calls:
    """One row per call that was due, in seconds of the monotonic clock. `sent` and `ended` are NaN where it was not.

    `cpu_seconds` of the generator in `wall_seconds`.
    """

    due: NDArray[np.float64]
    sent: NDArray[np.float64]
    ended: NDArray[np.float64]
    status: NDArray[np.int64]
    cpu_seconds: float
    wall_seconds: float

    @property
    def answered(self) -> NDArray[np.bool_]:
        return np.asarray(self.status == OK)

    @property
    def milliseconds(self) -> NDArray[np.float64]:
        """From when each call was due to its answer; MISSED_MS where there was none, or another status."""
        return np.where(self.answered, 1000 * (np.nan_to_num(self.ended) - self.due), MISSED_MS)

    @property
    def from_sent_ms(self) -> NDArray[np.float64]:
        """As `milliseconds`, from when each call was sent."""
        return np.where(self.answered, 1000 * (np.nan_to_num(self.ended) - self.sent), MISSED_MS)

    @property
    def generator_share(self) -> float:
        """CPU the generator used, as a share of one core."""
        return self.cpu_seconds / self.wall_seconds

    @property
    def late_ms(self) -> float:
        """p99 of how late calls were sent. A call that was never sent was as late as can be."""
        late = 1000 * (self.sent - self.due)
        return quantile(np.where(np.isfinite(late), late, MISSED_MS).tolist(), 0.99)

    def due_from(self, start: float) -> "Calls":
        """Without the calls that were due before."""
        kept = self.due >= start
        return replace(self, due=self.due[kept], sent=self.sent[kept], ended=self.ended[kept], status=self.status[kept])

    def p50(self) -> float:
        return quantile(self.milliseconds.tolist(), 0.50)

    def p95(self, least: int = LEAST_CALLS) -> float:
        """Raises: CannotMeasure for fewer than `least` calls."""
        if len(self.due) < least:
            raise CannotMeasure(f"{len(self.due)} calls, a p95 takes {least}: the load was too short for this machine")
        return quantile(self.milliseconds.tolist(), 0.95)

    def rate(self, start: float, end: float) -> float:
        """Answers per second that ended in [start, end)."""
        inside = self.answered & (np.nan_to_num(self.ended) >= start) & (np.nan_to_num(self.ended) < end)
        return float(inside.sum()) / (end - start)

    def good(self, within_ms: float) -> int:
        """Calls answered within their deadline: not those that were refused, late, lost or never sent."""
        return int((self.milliseconds <= within_ms).sum())

    def goodput(self, within_ms: float) -> float:
        """Share of the calls that were due."""
        return self.good(within_ms) / len(self.due)

    def late(self, timeout_ms: float) -> int:
        """Answers that came more than that after their call was sent."""
        return int((self.answered & (self.from_sent_ms > timeout_ms)).sum())

    def refusals_ms(self) -> list[float]:
        """How long each refusal took, from when its call was due."""
        refused = np.isfinite(self.ended) & (self.status == RESOURCE_EXHAUSTED)
        return [float(it) for it in 1000 * (self.ended - self.due)[refused]]


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest rank. Raises: CannotMeasure without values."""
    if not values:
        raise CannotMeasure("no calls were made in a phase; the machine is too busy")
    ranked = sorted(values)
    return ranked[math.ceil(share * len(ranked)) - 1]


def statuses(calls: Calls) -> dict[int, int]:
    """How many calls ended with which status; -1 is lost."""
    found, counts = np.unique(np.where(np.isfinite(calls.ended), calls.status, -1), return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))
