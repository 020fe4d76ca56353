"""What another replica's heartbeat becomes for whoever may send to it."""

import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.storage_pb2 import ReplicaProfile, ReplicaState
from realtime_service.cluster import heartbeat
from realtime_service.cluster.heartbeat import LaneLoad
from realtime_service.cluster.membership import Membership
from realtime_service.process import redis_connections
from realtime_service.routing.overrides import Policy
from realtime_service.routing.snapshot import ANY_RELEASE, Snapshot
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
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
    state = heartbeat.state(ReplicaDescription(id="b"), {LANE: LaneLoad(waiting, most)})
    replica = heartbeat.meet(state.profile, {})
    [option] = replica.options
    option.send(0.0, ours, real_time=False)
    heartbeat.hear(replica, state)
    assert option.real_time is not None
    assert (option.places, option.real_time.places) == (places, places)


def _with_lanes(*lanes: str) -> bytes:
    profile = ReplicaProfile(replica=ReplicaDescription(id="c"), lanes=lanes)
    return ReplicaState(profile=profile.SerializeToString()).SerializeToString()


class Told:
    """What replica "b" says of itself, and who hears it."""

    def __init__(self, redis_url: str) -> None:
        self.client = redis_connections.patient(redis_url)
        self.described = ReplicaDescription(id="b", releases=["r-1"])
        self.loads = {LANE: LaneLoad()}
        self.b = Membership(
            self.client, Snapshot("b"), lambda opened: heartbeat.state(self.described, self.loads), Policy()
        )
        silent = heartbeat.state(ReplicaDescription(id="a"))
        self.a = Membership(self.client, Snapshot("a"), lambda opened: silent, Policy())

    async def heard(self) -> Snapshot:
        await self.b.run_once()
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
    told.loads[LANE] = LaneLoad(places=9, finish=5.0, real_time=4.0, per_text=0.007, load=0.5)
    snapshot = await told.heard()
    ((same,), (urgent,)) = snapshot.options["r-1", LANE], snapshot.real_time["r-1", LANE]
    assert same is lane
    assert same.sent.texts == urgent.sent.texts == 3
    # What is under way is in what it predicts, too, and is counted apart.
    assert (same.finish, urgent.finish, same.per_text, same.load, same.places) == (3.0, 2.0, 0.007, 0.5, 9)


async def test_lanes_come_and_go_with_what_a_replica_says(told: Told) -> None:
    told.loads[ServingPath.DYNAMIC] = LaneLoad()
    assert len((await told.heard()).options) == 4
    (lane,) = told.a.snapshot.options["r-1", LANE]
    del told.loads[ServingPath.DYNAMIC]
    snapshot = await told.heard()
    assert set(snapshot.options) == set(snapshot.real_time) == {("r-1", LANE), (ANY_RELEASE, LANE)}
    assert snapshot.options["r-1", LANE][0] is lane
    told.described.releases[:] = ["r-2"]
    assert set((await told.heard()).options) == {("r-2", LANE), (ANY_RELEASE, LANE)}
    told.described.address = "elsewhere:1"
    assert (await told.heard()).address("b") == "elsewhere:1"
    told.described.draining = True
    assert not (await told.heard()).options
    told.described.draining = False
    assert (await told.heard()).options
    told.a.eject(["b"])
    assert not (await told.heard()).options


async def test_a_replica_knows_the_load_of_its_own_lanes_as_others_do(told: Told) -> None:
    told.loads[LANE] = LaneLoad(load=0.5)
    await told.heard()
    assert told.b.snapshot.load == {LANE: 0.5}
    assert told.a.snapshot.load == {}


@pytest.mark.parametrize(
    "foreign",
    [
        # As replicas before this version told of themselves: none of it is where it is looked for.
        b"\x0a\x03\x0a\x01c",
        ReplicaState(profile=b"\xff").SerializeToString(),
        ReplicaState(profile=ReplicaProfile(lanes=["dynamic"]).SerializeToString()).SerializeToString(),
        _with_lanes("a lane of tomorrow"),
        # A lane without its numbers.
        _with_lanes("dynamic"),
    ],
)
async def test_a_replica_of_another_version_is_left_out_and_said_once(
    told: Told, foreign: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    others = {"c": foreign, "d": ReplicaState(profile=b"\xfe").SerializeToString()}
    for name, state in others.items():
        await told.client.set(keys.replica(name), state)
        await told.client.sadd(keys.replicas(), name)
    for _ in range(3):
        assert set((await told.heard()).by_id) == {"a", "b"}
    said = [record.getMessage() for record in caplog.records if "is left out" in record.getMessage()]
    # Both replicas say it of both.
    assert len(said) == 4
