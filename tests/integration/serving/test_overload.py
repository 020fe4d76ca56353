"""Far more calls than a replica can answer, through a router: it answers up to capacity and refuses others at once."""

from collections.abc import Iterator

import pytest

from tests.integration.serving.conftest import Measured
from tests.integration.serving.fleet import TEXTS, Fleet, end, steady, wait_until_answered
from tests.load import arrivals, load
from tests.load.calls import Calls, quantile
from tests.load.plans import Plan

pytestmark = pytest.mark.timed

TIMEOUT_MS = 50
#: Timeout of REAL_TIME calls.
REAL_TIME_MS = 200


@pytest.fixture(scope="module")
def routed(sleeping: tuple[Fleet, float]) -> Iterator[tuple[str, float]]:
    """(address of a router, capacity of the sleeping replica behind it in calls a second)."""
    fleet, capacity = sleeping
    router = fleet.router()
    wait_until_answered(router)
    yield router.address, capacity
    end(router)


def calls_of(address: str, rate: float, seconds: float, timeout_ms: int = TIMEOUT_MS, priority: str = "NORMAL") -> Plan:
    due = arrivals.poisson(rate, seconds, seed=round(rate)).tolist()
    return Plan(address=address, texts=TEXTS, seconds=seconds, due=due, timeout_ms=timeout_ms, priority=priority)


@pytest.mark.parametrize(
    ("times", "seconds", "least", "refusal_ms"),
    [(5, 2.0, 0.6, 100.0), *(pytest.param(n, 10.0, 0.85, 20.0, marks=pytest.mark.proof) for n in (2, 5, 10))],
)
def test_under_overload_goodput_stays_and_refusals_come_at_once(
    routed: tuple[str, float], times: int, seconds: float, least: float, refusal_ms: float, measured: Measured
) -> None:
    """`least`: goodput, as a share of capacity; `refusal_ms`: p99."""
    address, capacity = routed
    calls = load.run(calls_of(address, times * capacity, seconds))
    goodput, refusal = calls.good(TIMEOUT_MS) / (seconds * capacity), quantile(calls.refusals_ms(), 0.99)
    measured(f"overload × {times}: goodput, of capacity", goodput, ">= 0.85")
    measured(f"overload × {times}: p99 of a refusal, ms", refusal, "<= 20")
    assert goodput >= least
    assert refusal <= refusal_ms


@pytest.mark.parametrize(
    ("times", "seconds", "needed", "least"),
    [(5, 2.0, 0.4, 0.8), *(pytest.param(n, 10.0, 0.7, 0.99, marks=pytest.mark.proof) for n in (2, 5, 10))],
)
@pytest.mark.parametrize(
    ("priority", "timeout_ms"), [("NORMAL", TIMEOUT_MS), pytest.param("BATCH", 0, marks=pytest.mark.proof)]
)
def test_real_time_calls_are_answered_under_any_other_load(
    routed: tuple[str, float],
    priority: str,
    timeout_ms: int,
    times: int,
    seconds: float,
    needed: float,
    least: float,
    measured: Measured,
) -> None:
    """`needed`: share of the capacity for REAL_TIME calls; `least`: share of them that are answered in time."""
    address, capacity = routed
    urgent = steady(address, needed * capacity, seconds, REAL_TIME_MS)
    others = calls_of(address, (times - needed) * capacity, seconds, timeout_ms, priority)
    calls: Calls = load.run_together([urgent, others], [0.0, 0.0])[0]
    share = calls.goodput(REAL_TIME_MS)
    measured(f"overload × {times} by {priority}: REAL_TIME calls answered in time", share, ">= 0.99")
    assert share >= least
