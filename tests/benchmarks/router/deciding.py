"""Duration of the pure decision with 64 replicas: for usual requests, and for those that no replica can answer in time.

Each decision is timed alone; the clock takes a twentieth of a microsecond.
"""

import contextlib
import gc
import random
import time
from collections.abc import Sequence

from realtime_service.errors import Overloaded
from realtime_service.routing.overrides import Policy
from realtime_service.routing.policy import RoutedRequest, decide
from realtime_service.routing.snapshot import Snapshot, as_real_time, options
from shared_model.types import Priority
from tests.benchmarks.router import fleet
from tests.load.calls import quantile

DECISIONS = 20_000
#: Share of the requests whose two replicas drawn at random would both be late, so that all are looked at.
SCANNING_SHARE = 0.1
#: Seconds of work that this process has under way at a lane, at most.
_SENT = 0.02
#: Seconds: enough for any of the replicas, for a few of them, for none.
ENOUGH, SCARCE, NONE = 0.2, 0.004, 0.0001
_PRIORITIES = (Priority.REAL_TIME, Priority.UNSPECIFIED, Priority.BATCH)


def measure() -> dict[str, float]:
    """p99 in microseconds: of a realistic mix, and where all replicas would be late."""
    draw = random.Random(5)
    snapshot = router(draw)
    mixed = [request(draw, SCARCE if draw.random() < SCANNING_SHARE else ENOUGH) for _ in range(DECISIONS)]
    late = [request(draw, NONE) for _ in range(DECISIONS // 10)]
    return {
        "decide_p99_us": quantile(_microseconds(mixed, snapshot, draw), 0.99),
        "decide_all_late_p99_us": quantile(_microseconds(late, snapshot, draw), 0.99),
    }


def router(draw: random.Random) -> Snapshot:
    """A router's snapshot of the fleet."""
    replicas = tuple(fleet.replica(state) for state in fleet.states(draw))
    for option in (option for replica in replicas for option in replica.options):
        option.send(draw.uniform(0.0, _SENT), texts=1, real_time=True)
    found = options(replicas, "router")
    return Snapshot("router", replicas=replicas, options=found, real_time=as_real_time(found), redis_available=True)


def request(draw: random.Random, remaining_budget: float) -> RoutedRequest:
    """One text, of either release."""
    return RoutedRequest(1, draw.choice(_PRIORITIES), None, remaining_budget, draw.choice(fleet.RELEASES), here={})


def _microseconds(requests: Sequence[RoutedRequest], snapshot: Snapshot, draw: random.Random) -> list[float]:
    policy, took = Policy(), list[float]()
    # A collection is due to what else a process does.
    gc.disable()
    try:
        for it in requests:
            drawn, began = draw.random(), time.perf_counter_ns()
            with contextlib.suppress(Overloaded):
                decide(it, policy, snapshot, drawn)
            took.append((time.perf_counter_ns() - began) / 1_000)
    finally:
        gc.enable()
    return took
