"""How far the distributions of committed scores have moved: the figures, and the figures as text."""

from collections.abc import Sequence
from dataclasses import dataclass

from batch_job.run_record import Outcome


@dataclass(frozen=True)
class Span:
    """Days, the first and the last among them. `committed`: how many of them hold rows."""

    first: str
    last: str
    committed: int

    def __str__(self) -> str:
        return f"{self.first}..{self.last}"


@dataclass(frozen=True)
class Shift:
    """How far one distribution has moved. `noise`: the index that chance alone may make of so few rows; `shares`: name,
    share of the window's rows and of the baseline's."""

    distribution: str
    value: float
    noise: float
    outcome: Outcome
    shares: tuple[tuple[str, float, float], ...]


@dataclass(frozen=True)
class Comparison:
    """The rows of a window that one release has scored, against the baseline. `same_release`: those of the baseline
    that the same release has scored; else all of it. `truncated`: shares of cut texts, as in `Shift.shares`."""

    window: Span
    baseline: Span
    release: str
    rows: int
    baseline_rows: int
    same_release: bool
    truncated: tuple[float, float]
    shifts: tuple[Shift, ...]

    @property
    def title(self) -> str:
        days = f"{self.window.committed} day{'s' * (self.window.committed != 1)}"
        return f"{self.window} ({days}), release {self.release}"


@dataclass(frozen=True)
class DriftReport:
    """`input`: whose scores; `bound`: of the index beyond noise, 0 for none; `unmeasured`: windows that were compared
    with nothing, and why."""

    input: str
    bound: float
    comparisons: tuple[Comparison, ...]
    unmeasured: tuple[str, ...] = ()

    @property
    def failures(self) -> list[str]:
        return [
            f"{shift.distribution} of {it.title}: {figures(shift)}"
            for it in self.comparisons
            for shift in it.shifts
            if shift.outcome is Outcome.FAIL
        ]


def figures(shift: Shift) -> str:
    return f"PSI {shift.value:.3f}, noise {shift.noise:.3f}"


def lines(report: DriftReport) -> list[str]:
    """The report as text."""
    said = []
    for it in report.comparisons:
        against = f"{it.baseline_rows:,} of {it.baseline}{'' if it.same_release else ', of other releases'}"
        said.append(f"{it.title}: {it.rows:,} rows against {against}")
        said += [f"  {shift.distribution:8} {shift.outcome:12} {figures(shift)}" for shift in it.shifts]
    return [*said, *report.unmeasured]


def rest(shares: Sequence[tuple[str, float, float]], shown: int) -> tuple[int, float, float]:
    """How many names are not among the first, and their shares."""
    left = shares[shown:]
    return len(left), sum(it[1] for it in left), sum(it[2] for it in left)
