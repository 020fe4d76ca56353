"""One of two replicas is stopped: its calls end with their deadlines, and soon no call is forwarded to it."""

import os
import signal
import time

import numpy as np
import pytest

from tests.integration.serving.conftest import Measured
from tests.integration.serving.fleet import Fleet, during, forwarded, steady, takes_traffic, wait_until_routed_to
from tests.load.calls import statuses
from tests.realtime_service.conftest import eventually

DEADLINE_EXCEEDED = 4
TIMEOUT_MS = 500
#: Seconds for which calls may still be forwarded to a replica that hangs.
FOUND_SECONDS = 2.0


@pytest.mark.timed
@pytest.mark.parametrize(
    ("rate", "seconds", "late_ms"),
    [(100.0, 3.2, 250.0), pytest.param(200.0, 20.0, 50.0, marks=pytest.mark.proof)],
    ids=["few", "all"],
)
def test_a_replica_that_hangs_delays_no_call_past_its_deadline_and_is_soon_ejected(
    ours: Fleet, rate: float, seconds: float, late_ms: float, measured: Measured
) -> None:
    """`late_ms`: the latest end of a call after its deadline."""
    router, hangs, other = ours.start(routers=1, replicas=2)
    wait_until_routed_to(router, hangs, other)
    with during(steady(router.address, rate, seconds, TIMEOUT_MS)) as loads:
        eventually(takes_traffic(hangs))
        os.kill(hangs.process.pid, signal.SIGSTOP)
        stopped = time.monotonic()
    (calls,) = loads.result()
    took = 1000 * (calls.ended - calls.due)
    assert np.isfinite(took).all()
    assert took.max() <= TIMEOUT_MS + late_ms
    # Only the calls that were forwarded to the hung replica are late, and there are some.
    assert statuses(calls)[DEADLINE_EXCEEDED] > 0
    assert calls.due_from(stopped + FOUND_SECONDS).answered.all()
    assert sum(count for outcome, count in forwarded(router).items() if outcome != "answered") > 0
    suffering = calls.due[~calls.answered] - stopped
    measured("replica hung: last end after a deadline, ms", took.max() - TIMEOUT_MS, "<= 50")
    measured("replica hung: last call sent there, seconds after it hung", suffering.max(), "<= 2")
