"""What another replica's heartbeat becomes for whoever may send to it."""

import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.storage_pb2 import LaneLoad, ReplicaState
from realtime_service import redis_clients
from realtime_service.routing.policy import Policy
from realtime_service.routing.registry import Registry, read_replica
from realtime_service.routing.snapshot import ANY_RELEASE, Snapshot
from shared_model.redis_server import RedisServer
from shared_model.settings import StateSettings
from shared_model.types import ServingPath

LANE = ServingPath.THROUGHPUT


@pytest.mark.parametrize(
    ("most", "waiting", "ours", "places"),
    [
        (256, 0, 0, 256),
        # All that waits there is ours.
        (256, 200, 200, 256),
        # Of what waits there some is others', who fill as much of the lane.
        (256, 200, 150, 206),
        # We have sent more since it told.
        (256, 10, 90, 256),
        (256, 256, 0, 0),
        # A replica that does not say refuses for itself.
        (0, 10, 0, math.inf),
    ],
)
def test_what_others_have_waiting_leaves_us_that_much_less(most: int, waiting: int, ours: int, places: float) -> None:
    load = LaneLoad(waiting=waiting, max_concurrent_requests=most)
    state = ReplicaState(replica=ReplicaDescription(id="b"), load={str(LANE): load})
    before = read_replica(state, None)
    before.options[0].send(0.0, ours, real_time=False)
    [option] = read_replica(state, before).options
    assert option.real_time is not None
    assert (option.places, option.real_time.places) == (places, places)


class Told:
    """What replica "b" says of itself, and who hears it."""

    def __init__(self, redis_url: str) -> None:
        self.client = redis_clients.patient(redis_url)
        self.state = ReplicaState(replica=ReplicaDescription(id="b", releases=["r-1"]), load={str(LANE): LaneLoad()})
        self._b = Registry(self.client, Snapshot("b"), lambda opened: self.state, Policy())
        silent = ReplicaState(replica=ReplicaDescription(id="a"))
        self.a = Registry(self.client, Snapshot("a"), lambda opened: silent, Policy())

    async def heard(self) -> Snapshot:
        await self._b.run_once()
        await self.a.run_once()
        return self.a.snapshot


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Told]:
    """On a Redis of their own: on the session's there may be services."""
    with RedisServer(StateSettings(state=tmp_path)) as server:
        told = Told(server.url)
        yield told
        await told.client.aclose()


async def test_a_lane_is_told_new_numbers_and_keeps_what_is_under_way(told: Told) -> None:
    (lane,) = (await told.heard()).options["r-1", LANE]
    lane.send(2.0, 3, real_time=True)
    load = LaneLoad(predicted_finish_ms=5000, real_time_finish_ms=4000, per_text_ms=7, load=0.5)
    load.max_concurrent_requests = 9
    told.state.load[str(LANE)].CopyFrom(load)
    snapshot = await told.heard()
    ((same,), (urgent,)) = snapshot.options["r-1", LANE], snapshot.real_time["r-1", LANE]
    assert same is lane
    assert same.sent.texts == urgent.sent.texts == 3
    # What is under way is in what it predicts, too, and is counted apart.
    assert (same.finish, urgent.finish, same.per_text, same.load, same.places) == (3.0, 2.0, 0.007, 0.5, 9)


async def test_lanes_come_and_go_with_what_a_replica_says(told: Told) -> None:
    told.state.load[str(ServingPath.DYNAMIC)].SetInParent()
    assert len((await told.heard()).options) == 4
    (lane,) = told.a.snapshot.options["r-1", LANE]
    del told.state.load[str(ServingPath.DYNAMIC)]
    snapshot = await told.heard()
    assert set(snapshot.options) == set(snapshot.real_time) == {("r-1", LANE), (ANY_RELEASE, LANE)}
    assert snapshot.options["r-1", LANE][0] is lane
    told.state.replica.releases[:] = ["r-2"]
    assert set((await told.heard()).options) == {("r-2", LANE), (ANY_RELEASE, LANE)}
    told.state.replica.address = "elsewhere:1"
    assert (await told.heard()).address("b") == "elsewhere:1"
    told.state.replica.draining = True
    assert not (await told.heard()).options
    told.state.replica.draining = False
    assert (await told.heard()).options
    told.a.eject(["b"])
    assert not (await told.heard()).options
