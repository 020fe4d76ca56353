"""Figures of a release about the ends of its requests, for a comparison with another release."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from realtime_service.errors import DeadlineExpired, Overloaded, ScoringFailed
from realtime_service.models.registry import Model
from realtime_service.models.statistics import LaneTotal
from realtime_service.serving.accounting import Accounting
from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import Clock
from shared_model.errors import BadInput
from shared_model.types import ServingPath

#: Of the lane, in seconds.
TARGET = 0.05


class Ended(Clock):
    """Ten seconds after the request's arrival."""

    def monotonic(self) -> float:
        return 10.0

    def wall(self) -> float:
        return 10.0


def model() -> Model:
    return Model("r-1", *cast(Any, (None, None, {})))


def context(of: Model, seconds: float, within: float | None) -> Any:
    """A request that took so long. `within`: its own time."""
    arrived = 10.0 - seconds
    due = None if within is None else arrived + within
    policy = SimpleNamespace(targets={ServingPath.LATENCY: TARGET})
    snapshot = SimpleNamespace(policy=policy)
    return SimpleNamespace(
        model=of, name="r", path=None, arrived=arrived, deadline=due, snapshot=snapshot, left=lambda now: None
    )


@pytest.mark.parametrize(
    ("seconds", "within", "late", "slow"),
    [
        *((0.01, None, 0, 0), (0.06, None, 1, 1), (0.06, 1.0, 0, 1), (0.04, 0.03, 1, 0)),
        *((0.046, 0.048, 0, 0), (0.0466, 0.048, 1, 0), (0.997, 1.0, 0, 1), (0.998, 1.0, 1, 1)),
    ],
    ids=[
        *("in time", "over the target", "within its own time", "after its own time"),
        *("4.2 % before its end", "2.9 % before its end", "3 ms before its end", "2 ms before its end"),
    ],
)
def test_an_answer_is_late_by_its_deadline_and_slow_by_its_lane(
    seconds: float, within: float | None, late: int, slow: int
) -> None:
    of = model()
    answer: Any = SimpleNamespace(ticket=None, path=ServingPath.LATENCY, batch_rows=1, queued=0.0, computed=0.0)
    Accounting(Metrics([]), Ended()).answered(context(of, seconds, within), answer)
    assert of.statistics.lanes == {ServingPath.LATENCY: LaneTotal(1, pytest.approx(seconds), late, slow)}


def test_a_published_answer_says_nothing_of_the_release_s_speed() -> None:
    of = model()
    answer: Any = SimpleNamespace(ticket=None, path=ServingPath.PRECOMPUTED, batch_rows=0, queued=0.0, computed=0.0)
    Accounting(Metrics([]), Ended()).answered(context(of, 0.01, None), answer)
    assert (of.statistics.answered.count, of.statistics.lanes) == (1, {})


@pytest.mark.parametrize(
    ("error", "within", "unserved"),
    [
        (ScoringFailed("no"), None, 1),
        (Overloaded("full", 1.0), None, 1),
        (DeadlineExpired("late"), 0.1, 1),
        (BadInput("texts", "is empty"), None, 0),
        # The caller went; or gRPC ended the call, because its deadline had passed.
        (asyncio.CancelledError(), None, 0),
        (asyncio.CancelledError(), 5.0, 0),
        (asyncio.CancelledError(), 0.5, 1),
    ],
)
def test_a_release_is_not_to_blame_for_what_its_callers_do(
    error: BaseException, within: float | None, unserved: int
) -> None:
    of = model()
    Accounting(Metrics([]), Ended()).lost(context(of, 1.0, within), error)
    assert (of.statistics.failed.count, of.statistics.unserved) == (1, unserved)
