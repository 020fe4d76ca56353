"""The rows of the group `burst`: which loads there are, and what one of them showed. No I/O."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.benchmarks.harness import CannotMeasure
from tests.load import arrivals, ideal
from tests.load.arrivals import Times
from tests.load.calls import Calls, quantile

#: Coefficients of variation of gamma arrivals.
_VARIATIONS = {"cv5": 5.0, "cv13": 13.0}
_TRACE = "trace"
_PERCENTS = (15, 35, 70)
TIMEOUTS_MS = (80, 400)
#: Share of what the ideal queue answers in time, for gaps of a variation of at most _BURSTY and beyond.
_OF_IDEAL, _OF_IDEAL_BURSTY, _BURSTY = 0.95, 0.90, 5.5
#: The service may miscount late answers by a share of them, or of all calls.
_MISCOUNT, _MISCOUNT_OF_CALLS = 0.10, 0.002


@dataclass(frozen=True)
class Row:
    """A load: arrivals, their rate in percent of the capacity, a timeout. `tight`: the timeout is the calls' gRPC
    deadline as well; `admission`: the service may refuse."""

    shape: str
    percent: int
    timeout_ms: int
    tight: bool = False
    admission: bool = True

    @property
    def name(self) -> str:
        return "-".join(
            (
                self.shape,
                str(self.percent),
                str(self.timeout_ms),
                *(["deadline"] if self.tight else []),
                *([] if self.admission else ["unguarded"]),
            )
        )

    def due(self, rate: float, seconds: float, seed: int, recorded: Times) -> Times:
        if self.shape == _TRACE:
            start = float(np.random.default_rng(seed).random())
            return arrivals.replayed(recorded, rate, seconds, start)
        return arrivals.gamma(rate, _VARIATIONS[self.shape], seconds, seed)


def rows(only: str, has_trace: bool) -> list[Row]:
    """All rows, or those named by comma; without recorded arrivals, no row of them.

    Raises: CannotMeasure for a name there is no row of.
    """
    shapes = [*_VARIATIONS, *([_TRACE] if has_trace else [])]
    every = [Row(*it) for it in itertools.product(shapes, _PERCENTS, TIMEOUTS_MS)]
    every += [Row("cv13", 35, timeout, tight=True) for timeout in TIMEOUTS_MS]
    every += [Row("cv5", 70, TIMEOUTS_MS[0], admission=False)]
    named = {row.name: row for row in every}
    wanted = [name.strip() for name in only.split(",") if name.strip()] or list(named)
    if unknown := sorted(set(wanted) - set(named)):
        raise CannotMeasure(f"ROWS: there is no row {', '.join(unknown)}; choose of {', '.join(named)}")
    return [named[name] for name in named if name in wanted]


@dataclass(frozen=True)
class Lane:
    """Rates per second of the lane that calls of a timeout take: of a `closed` loop, and of the `capacity` row;
    `base_ms`: of a call, beside its share of the capacity."""

    closed: float
    capacity: float
    base_ms: float


@dataclass(frozen=True)
class Seen:
    """A row as a client and the service saw it. `counted_late`: by the service; `tries`: invalid ones and this one."""

    row: Row
    lane: Lane
    calls: Calls
    counted_late: int
    echo_p99_ms: float
    tries: int

    @property
    def in_time(self) -> float:
        return float(np.mean(self.calls.from_sent_ms <= self.row.timeout_ms))

    @property
    def ideal(self) -> float:
        sent = np.sort(self.calls.sent)
        return ideal.in_time(sent, self.lane.capacity, self.lane.base_ms / 1000, self.row.timeout_ms / 1000)

    @property
    def of_bound(self) -> float:
        """1 where the row holds its bound. Rows without admission control have no bound."""
        # Of the row, not of its sample, which may be burstier.
        variation = _VARIATIONS.get(self.row.shape) or arrivals.variation(self.calls.due)
        return self.in_time / (self.ideal * (_OF_IDEAL_BURSTY if variation > _BURSTY else _OF_IDEAL))

    @property
    def late_share(self) -> float:
        return self.calls.late(self.row.timeout_ms) / len(self.calls.due)

    @property
    def refusal_over_echo_ms(self) -> float:
        refusals = self.calls.refusals_ms()
        return quantile(refusals, 0.99) - self.echo_p99_ms if refusals else 0.0

    @property
    def miscount(self) -> float:
        """How far the service's count of late answers is from the client's, of what it may be."""
        late = self.calls.late(self.row.timeout_ms)
        return abs(self.counted_late - late) / max(_MISCOUNT * late, _MISCOUNT_OF_CALLS * len(self.calls.due))


_HEADINGS = (
    *("row", "calls", "in time", "from due", "ideal", "of bound", "late", "counted"),
    *("answers p99", "refused", "p99", "failed", "echo p99", "tries"),
)


def table(seen: Sequence[Seen]) -> str:
    lines = [_HEADINGS, *map(_cells, seen)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _cells(seen: Seen) -> tuple[str, ...]:
    calls, timeout_ms = seen.calls, seen.row.timeout_ms
    answers, refusals = calls.from_sent_ms[calls.answered].tolist(), calls.refusals_ms()
    return (
        seen.row.name,
        str(len(calls.due)),
        f"{seen.in_time:.3f}",
        f"{calls.goodput(timeout_ms):.3f}",
        f"{seen.ideal:.3f}",
        f"{seen.of_bound:.3f}",
        str(calls.late(timeout_ms)),
        str(seen.counted_late),
        f"{quantile(answers, 0.99):.1f}" if answers else "",
        str(len(refusals)),
        f"{quantile(refusals, 0.99):.1f}" if refusals else "",
        str(len(calls.due) - len(answers) - len(refusals)),
        f"{seen.echo_p99_ms:.1f}",
        str(seen.tries),
    )
