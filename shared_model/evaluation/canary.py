"""Judges a canary by the calls of its callers, beside those of the active release. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from shared_model.evaluation.significance import wilson_lower

#: A watch looks many times: at three standard deviations, noise seldom ends one.
_Z = 3.0
#: Fewer events are chance, however few the calls.
_FEWEST = 3
#: Shares of calls by which a canary may be above the active release: failed ones, those after their deadline, and those
#: that took longer than the target of their lane.
_FAILED, _LATE, _SLOW = 0.001, 0.02, 0.02
#: A p95 target allows for these, whatever the active release does.
_OVER_P95 = 0.05


class Outcome(StrEnum):
    KEPT = "kept"
    WORSE = "worse"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Verdict:
    """`reason`: in one line."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Lane:
    """Calls that one lane answered: see LaneFigures in protos/scoring/v1/storage.proto."""

    answered: int = 0
    late: int = 0
    slow: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        mean = 1000 * self.seconds / self.answered if self.answered else 0.0
        return (
            f"{share(self.late, self.answered)} late, {share(self.slow, self.answered)} over the target, {mean:.1f} ms"
        )


@dataclass(frozen=True)
class Calls:
    """The calls that a release has ended during a watch. `failed`: without an answer, by no fault of the caller;
    `lanes`: by path."""

    failed: int = 0
    lanes: Mapping[str, Lane] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.failed + sum(it.answered for it in self.lanes.values())

    def __str__(self) -> str:
        lanes = (f"; {path}: {it}" for path, it in sorted(self.lanes.items()) if it.answered)
        return f"{self.count} calls, {share(self.failed, self.count)} failed{''.join(lanes)}"


def judge(canary: Calls, active: Calls, least: int) -> Verdict:
    """Worse where a test shows it, at any time; kept only after so many calls."""
    if worse := next(_complaints(canary, active), ""):
        return Verdict(Outcome.WORSE, worse)
    if canary.count < least:
        said = f"the canary ended {canary.count} calls, fewer than {least}: nothing can be said of it"
        return Verdict(Outcome.UNDECIDED, said)
    return Verdict(Outcome.KEPT, f"canary: {canary}. active release: {active}")


def share(some: int, all_: int) -> str:
    return f"{some / all_ if all_ else 0.0:.2%}"


def _complaints(canary: Calls, active: Calls) -> Iterator[str]:
    own, other = (canary.failed, canary.count), (active.failed, active.count)
    if _is_above(*own, _part(*other) + _FAILED):
        yield _said("of the canary's calls failed", own, other)
    for path, lane in sorted(canary.lanes.items()):
        beside = active.lanes.get(path, Lane())
        own, other = (lane.late, lane.answered), (beside.late, beside.answered)
        if _is_above(*own, _part(*other) + _LATE):
            yield _said(f"of the canary's answers in the {path} lane were late", own, other)
        own, other = (lane.slow, lane.answered), (beside.slow, beside.answered)
        if _is_above(*own, max(_OVER_P95, _part(*other) + _SLOW)):
            yield _said(f"of the canary's answers in the {path} lane took longer than its p95 target", own, other)


def _is_above(some: int, all_: int, bound: float) -> bool:
    """Whether a share is above a bound by more than chance."""
    return some >= _FEWEST and wilson_lower(some, all_, _Z) > bound


def _part(some: int, all_: int) -> float:
    return some / all_ if all_ else 0.0


def _said(what: str, own: tuple[int, int], other: tuple[int, int]) -> str:
    of_active = f"{share(*other)} of the active release's ({other[0]} of {other[1]})"
    return f"{share(*own)} {what} ({own[0]} of {own[1]}), {of_active}"
