"""A caller asks two routers for ten times its quota: it gets its quota, and other callers are not delayed."""

import pytest

from tests.integration.serving.conftest import Measured
from tests.integration.serving.fleet import Fleet, end, steady, wait_until_answered
from tests.load import load
from tests.load.calls import OK, Calls, quantile, statuses
from tests.load.plans import Plan
from tests.realtime_service.tokens import key_file, token

#: Texts a second of one caller. All of them together need less than what the replica can answer, which is 100.
QUOTA = 20.0
OTHERS = ("one", "another")
RATE = 15.0
#: Seconds until the shares of a caller's quota have followed its demand.
SETTLED_SECONDS = 2.0


@pytest.mark.timed
@pytest.mark.parametrize(
    ("seconds", "ratio"), [(3.5, 3.0), pytest.param(60.0, 1.2, marks=pytest.mark.proof)], ids=["short", "long"]
)
def test_a_caller_far_beyond_its_quota_does_not_delay_others(
    sleeping: tuple[Fleet, float], seconds: float, ratio: float, measured: Measured
) -> None:
    """`ratio`: p99 of the others' calls, relative to that while the greedy caller stays within its quota."""
    fleet, _ = sleeping
    keys = str(key_file(fleet.folder))
    routers = fleet.start(routers=2, replicas=0, TANDEM_QUOTA=str(QUOTA), TANDEM_TOKEN_KEYS=keys)
    for router in routers:
        wait_until_answered(router)

    def calls(greed: float) -> tuple[list[Calls], list[Calls]]:
        """Calls of (the greedy caller, the others), when it asks for so many times its quota."""
        greedy = [
            steady(it.address, greed * QUOTA / len(routers), seconds, token=token(sub="greedy"), timeout_ms=1_000)
            for it in routers
        ]
        others = [
            steady(it.address, RATE, seconds, token=token(sub=name), timeout_ms=1_000)
            for it, name in zip(routers, OTHERS, strict=True)
        ]
        plans: list[Plan] = [*greedy, *others]
        ended = load.run_together(plans, [0.0] * len(plans))
        settled = [it.due_from(it.due[0] + SETTLED_SECONDS) for it in ended]
        return settled[: len(greedy)], settled[len(greedy) :]

    _, usual = calls(greed=0.9)
    greedy, others = calls(greed=10.0)
    for router in routers:
        end(router)
    admitted = sum(statuses(it).get(OK, 0) for it in greedy)
    felt = _p99(others) / _p99(usual)
    expected = QUOTA * (seconds - SETTLED_SECONDS)
    measured(f"quota: texts of {expected:.0f} that a caller at × 10 got", admitted, "its quota")
    measured("quota: p99 of others, over that without the greedy caller's greed", felt, "<= 1.2")
    assert [statuses(it).keys() for it in others] == [{OK}] * len(others)
    assert 0.8 * expected <= admitted <= 1.1 * expected
    assert felt <= ratio


def _p99(several: list[Calls]) -> float:
    return quantile([ms for calls in several for ms in calls.milliseconds.tolist()], 0.99)
