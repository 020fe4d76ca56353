"""A replica joins and another leaves while two routers forward calls: no call is lost, and the routers agree."""

import time

import pytest
import redis

from protos.scoring.v1.storage_pb2 import RoutingPolicy
from realtime_service.cli import policy_command
from realtime_service.client import Client
from realtime_service.client.calls import ScoreOptions
from realtime_service.routing import overrides
from shared_model.trust.keyring import WITHOUT_KEYS
from shared_model.types import Priority, ServingPath
from tests.integration.serving.conftest import Measured
from tests.integration.serving.fleet import (
    Fleet,
    during,
    steady,
    takes_traffic,
    wait_until_answered,
    wait_until_routed_to,
)
from tests.load.calls import OK, statuses
from tests.realtime_service.conftest import RunningService, eventually

RATE = 100.0
#: Ways to ask. The policy decides the path of each, the same at every router.
WAYS: tuple[ScoreOptions, ...] = (
    {"priority": Priority.REAL_TIME},
    {"priority": Priority.BATCH},
    {"timeout_ms": 90},
    {"timeout_ms": 500},
    {"timeout_ms": 3_000},
    {},
)


@pytest.mark.timed
@pytest.mark.parametrize(
    ("seconds", "joins_within"), [(6.0, 3.0), pytest.param(30.0, 1.0, marks=pytest.mark.proof)], ids=["short", "long"]
)
def test_a_replica_that_joins_takes_calls_and_one_that_leaves_loses_none(
    ours: Fleet, seconds: float, joins_within: float, measured: Measured
) -> None:
    *routers, leaves = ours.start(routers=2, replicas=1)
    for router in routers:
        wait_until_routed_to(router, leaves)
    with during(*(steady(it.address, RATE, seconds) for it in routers)) as loads:
        joins = ours.replica()
        ready = time.monotonic()
        eventually(takes_traffic(joins))
        joined = time.monotonic() - ready
        assert leaves.stop() == 0
        eventually(takes_traffic(joins))
        assert not loads.done()
    found, asked = [statuses(calls) for calls in loads.result()], round(RATE * seconds)
    failed = sum(asked - each.get(OK, 0) for each in found)
    measured("a replica joins: takes calls after it is ready, seconds", joined, "<= 1")
    measured(f"a replica leaves: calls of {len(routers) * asked} that failed", failed, "0")
    assert found == [{OK: asked}] * len(routers)
    assert joined <= joins_within


@pytest.mark.heavy
def test_two_routers_agree_before_and_after_the_policy_changes(ours: Fleet) -> None:
    *routers, _ = ours.start(routers=2, replicas=1)
    for router in routers:
        wait_until_answered(router)
    before = paths(routers[0])
    assert before == paths(routers[1])
    assert set(before) == {ServingPath.LATENCY, ServingPath.DYNAMIC, ServingPath.THROUGHPUT}
    with redis.Redis.from_url(ours.redis.url) as client:
        changes = {"latency_below_ms": 50.0, "throughput_above_ms": 400.0}
        policy = overrides.change(RoutingPolicy(), changes).SerializeToString()
        policy_command.move(client, WITHOUT_KEYS, "policy set", lambda stored: policy)
    eventually(lambda: paths(routers[0]) != before)
    eventually(lambda: paths(routers[1]) == paths(routers[0]))


def paths(router: RunningService) -> list[ServingPath]:
    """The path of the answer to each way to ask."""
    with Client(router.address) as client:
        return [client.score("card", **way).path for way in WAYS]
