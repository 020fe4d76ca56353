"""One of two replicas is killed repeatedly: calls through a router succeed without retries of the client."""

import time
from collections.abc import Callable
from concurrent.futures import wait

import pytest

from tests.integration.serving.conftest import Measured
from tests.integration.serving.fleet import Fleet, during, steady, takes_traffic, wait_until_routed_to
from tests.load.calls import OK, statuses
from tests.realtime_service.conftest import eventually

RATE = 200.0


# A replica that starts within a second would be killed before its predecessor's heartbeat expires: of three
# known replicas two would be dead then, and at most half are ejected.
@pytest.mark.timed
@pytest.mark.parametrize(
    ("calls", "every"), [(700, 1.5), pytest.param(10_000, 5.0, marks=pytest.mark.proof)], ids=["few", "all"]
)
def test_replicas_killed_in_turn_cost_callers_nothing(
    ours: Fleet, calls: int, every: float, measured: Measured
) -> None:
    """`every`: least seconds between two kills; both replicas take calls before each."""
    router, *replicas = ours.start(routers=1, replicas=2)
    kills = 0
    wait_until_routed_to(router, *replicas)
    with during(steady(router.address, RATE, calls / RATE)) as loads:
        while not loads.done():
            killed_at = time.monotonic()
            replicas.pop(0).process.kill()
            kills += 1
            replicas.append(ours.replica())
            eventually(either(loads.done, takes_traffic(replicas[-1])))
            wait([loads], timeout=max(0.0, killed_at + every - time.monotonic()))
    found = statuses(loads.result()[0])
    measured(f"replica killed, {kills} times: calls of {calls} that failed", calls - found.get(OK, 0), "0")
    assert found == {OK: calls}


def either(one: Callable[[], bool], other: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: one() or other()
