"""Another replica's heartbeat, and the lanes that a router makes of it."""

import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.storage_pb2 import ReplicaProfile, ReplicaState, ServedModel
from realtime_service.cluster import heartbeat
from realtime_service.cluster.heartbeat import Following, LaneLoad
from realtime_service.cluster.membership import LATE_SECONDS, TTL_MS, Membership
from realtime_service.process import redis_connections
from realtime_service.routing.overrides import Policy
from realtime_service.routing.snapshot import ANY_RELEASE, Snapshot, any_release
from shared_model.clock import SimulatedClock
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings
from shared_model.types import ServingPath

pytestmark = pytest.mark.heavy

LANE = ServingPath.THROUGHPUT


@pytest.mark.parametrize(
    ("limit", "depth", "ours", "room"),
    [
        (256, 0, 0, 256),
        # All queued texts are ours.
        (256, 200, 200, 256),
        # Some queued texts are others', and use up as much of the queue.
        (256, 200, 150, 206),
        # We have sent more texts since the heartbeat.
        (256, 10, 90, 256),
        (256, 256, 0, 0),
        # Without a limit, the replica itself refuses.
        (0, 10, 0, math.inf),
    ],
)
def test_texts_that_others_have_queued_leave_less_room(limit: int, depth: int, ours: int, room: float) -> None:
    state = heartbeat.state(ReplicaDescription(id="b"), {LANE: LaneLoad(depth, limit)})
    replica = heartbeat.read_profile(state.profile, {})
    [option] = replica.options
    option.send(0.0, ours, real_time=False)
    heartbeat.apply(replica, state)
    assert option.real_time is not None
    assert (option.room, option.real_time.room) == (room, room)


def _with_lanes(*lanes: str) -> bytes:
    profile = ReplicaProfile(replica=ReplicaDescription(id="c"), lanes=lanes)
    return ReplicaState(profile=profile.SerializeToString()).SerializeToString()


class Pair:
    """Replica "b", and router "a" that reads its heartbeats; `clock`: of "a"."""

    def __init__(self, redis_url: str) -> None:
        self.client = redis_connections.default_client(redis_url)
        self.described = ReplicaDescription(id="b", releases=["r-1"])
        self.loads = {LANE: LaneLoad()}
        self.following = Following()
        self.b = Membership(
            self.client,
            Snapshot("b"),
            lambda opened: heartbeat.state(self.described, self.loads, following=self.following),
            Policy(),
        )
        silent = heartbeat.state(ReplicaDescription(id="a"))
        self.clock = SimulatedClock()
        self.a = Membership(self.client, Snapshot("a"), lambda opened: silent, Policy(), clock=self.clock)

    async def exchange(self) -> Snapshot:
        await self.b.run_once()
        await self.a.run_once()
        return self.a.snapshot


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    """Two replicas on a Redis of their own, because services may run on the session's."""
    with RedisServer(StateSettings(state=tmp_path)) as server:
        pair = Pair(server.url)
        yield pair
        await pair.client.aclose()


async def test_a_heartbeat_changes_a_lanes_numbers_and_keeps_its_work_under_way(pair: Pair) -> None:
    (lane,) = (await pair.exchange()).options["r-1", LANE]
    lane.send(2.0, 3, real_time=True)
    pair.loads[LANE] = LaneLoad(queue_limit=9, finish=5.0, real_time=4.0, per_text=0.007, utilisation=0.5)
    snapshot = await pair.exchange()
    ((same,), (urgent,)) = snapshot.options["r-1", LANE], snapshot.real_time["r-1", LANE]
    assert same is lane
    assert same.sent.texts == urgent.sent.texts == 3
    # The prediction includes our own work under way, which is subtracted.
    assert (same.finish, urgent.finish, same.per_text, same.utilisation, same.room) == (3.0, 2.0, 0.007, 0.5, 9)


async def test_lanes_come_and_go_with_the_heartbeats_of_a_replica(pair: Pair) -> None:
    pair.loads[ServingPath.DYNAMIC] = LaneLoad()
    assert len((await pair.exchange()).options) == 4
    (lane,) = pair.a.snapshot.options["r-1", LANE]
    del pair.loads[ServingPath.DYNAMIC]
    snapshot = await pair.exchange()
    assert set(snapshot.options) == set(snapshot.real_time) == {("r-1", LANE), (ANY_RELEASE, LANE)}
    assert snapshot.options["r-1", LANE][0] is lane
    pair.described.releases[:] = ["r-2"]
    assert set((await pair.exchange()).options) == {("r-2", LANE), (ANY_RELEASE, LANE)}
    pair.described.address = "elsewhere:1"
    assert (await pair.exchange()).described("b").address == "elsewhere:1"
    pair.described.draining = True
    assert not (await pair.exchange()).options
    pair.described.draining = False
    assert (await pair.exchange()).options
    pair.a.eject(["b"])
    assert not (await pair.exchange()).options


async def test_a_router_keeps_the_last_endpoint_it_has_heard_of_for_a_while(pair: Pair) -> None:
    for _ in range(2):
        await pair.exchange()
        await pair.client.delete(keys.replica("b"))
        for seconds in (0.0, LATE_SECONDS - 0.01):
            pair.clock.advance(seconds)
            await pair.a.run_once()
            assert pair.a.snapshot.options
        pair.clock.advance(0.01)
        await pair.a.run_once()
        assert not pair.a.snapshot.options


async def test_a_router_sends_no_call_to_a_stopped_last_endpoint_after_two_seconds(pair: Pair) -> None:
    await pair.exchange()
    stopped = pair.clock.monotonic()
    # Its heartbeat is there until just before one of the router's.
    pair.clock.advance(TTL_MS / 1000)
    await pair.client.delete(keys.replica("b"))
    while pair.a.snapshot.options:
        pair.clock.advance(heartbeat.PERIOD_SECONDS)
        await pair.a.run_once()
    assert pair.clock.monotonic() - stopped < 2.0


@pytest.mark.parametrize("left", ["drains", "is ejected", "has another lane", "has another release"])
async def test_a_router_keeps_the_last_endpoint_beside_one_that_does_not_replace_it(pair: Pair, left: str) -> None:
    lane = ServingPath.DYNAMIC if left == "has another lane" else LANE
    release = "r-2" if left == "has another release" else "r-1"
    described = ReplicaDescription(id="c", releases=[release], draining=left == "drains")
    other = Membership(
        pair.client, Snapshot("c"), lambda opened: heartbeat.state(described, {lane: LaneLoad()}), Policy()
    )
    await other.run_once()
    if left == "is ejected":
        pair.a.eject(["c"])
    await pair.exchange()
    await pair.client.delete(keys.replica("b"))
    await pair.a.run_once()
    assert [it.replica for it in pair.a.snapshot.options["r-1", LANE]] == ["b"]
    pair.clock.advance(LATE_SECONDS)
    await pair.a.run_once()
    assert ("r-1", LANE) not in pair.a.snapshot.options


async def test_a_router_keeps_no_endpoint_that_drains(pair: Pair) -> None:
    await pair.exchange()
    pair.described.draining = True
    await pair.exchange()
    await pair.client.delete(keys.replica("b"))
    await pair.a.run_once()
    assert [it.id for it in pair.a.snapshot.replicas] == ["a"]


async def test_one_of_several_endpoints_is_gone_with_its_heartbeat(pair: Pair) -> None:
    described = ReplicaDescription(id="c", releases=["r-1"])
    other = Membership(pair.client, Snapshot("c"), lambda opened: heartbeat.state(described, pair.loads), Policy())
    await other.run_once()
    assert len((await pair.exchange()).options["r-1", LANE]) == 2
    await pair.client.delete(keys.replica("b"))
    await pair.a.run_once()
    assert [it.replica for it in pair.a.snapshot.options["r-1", LANE]] == ["c"]


async def test_a_replica_with_lanes_of_its_own_keeps_no_other(pair: Pair) -> None:
    pair.a.open_lane(LANE)
    await pair.exchange()
    await pair.client.delete(keys.replica("b"))
    await pair.a.run_once()
    assert not pair.a.snapshot.options


async def test_a_replica_knows_the_utilisation_of_its_own_lanes_as_others_do(pair: Pair) -> None:
    pair.loads[LANE] = LaneLoad(utilisation=0.5)
    await pair.exchange()
    assert pair.b.snapshot.utilisation == {LANE: 0.5}
    assert pair.a.snapshot.utilisation == {}


@pytest.mark.parametrize(
    "foreign",
    [
        # A heartbeat of a former version, with other fields.
        b"\x0a\x03\x0a\x01c",
        ReplicaState(profile=b"\xff").SerializeToString(),
        ReplicaState(profile=ReplicaProfile(lanes=["dynamic"]).SerializeToString()).SerializeToString(),
        _with_lanes("a lane of tomorrow"),
        # A lane without its numbers.
        _with_lanes("dynamic"),
    ],
)
async def test_a_replica_of_another_version_is_left_out_and_logged_once(
    pair: Pair, foreign: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    others = {"c": foreign, "d": ReplicaState(profile=b"\xfe").SerializeToString()}
    for name, state in others.items():
        await pair.client.set(keys.replica(name), state)
        await pair.client.sadd(keys.replicas(), name)
    for _ in range(3):
        assert set((await pair.exchange()).by_id) == {"a", "b"}
    logged = [record.getMessage() for record in caplog.records if "is left out" in record.getMessage()]
    # Both replicas log both.
    assert len(logged) == 4


async def test_a_damaged_pointer_is_logged_once(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    await pair.client.hset(keys.release_pointer(), mapping={"version": "no number"})
    for _ in range(3):
        assert (await pair.exchange()).pointers == {}
    logged = [record.getMessage() for record in caplog.records if "keeps the last valid pointer" in record.getMessage()]
    # Once by each replica.
    assert len(logged) == 2


async def test_a_model_is_asked_only_where_it_is_served_and_a_former_version_serves_the_default_one(pair: Pair) -> None:
    snapshot = await pair.exchange()
    assert set(snapshot.options) == {("r-1", LANE), (ANY_RELEASE, LANE)}
    pair.following = Following(models={"side": ServedModel(active="side-1"), "asleep": ServedModel(on_demand=True)})
    pair.described.releases[:] = ["r-1", "side-1"]
    releases = {release for release, _ in (await pair.exchange()).options}
    assert releases == {"r-1", "side-1", ANY_RELEASE, any_release("side"), any_release("asleep")}
    assert pair.a.snapshot.releases == ["r-1", "side-1"]
