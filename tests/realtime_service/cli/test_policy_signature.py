"""A signed policy: replicas refuse the unsigned, the changed and the replaced; former versions read and write it."""

import struct
from pathlib import Path

import pytest
import redis

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.storage_pb2 import RoutingPolicy
from realtime_service.cli import policy_command
from realtime_service.cluster import heartbeat
from realtime_service.cluster.membership import Membership
from realtime_service.process import redis_connections
from realtime_service.routing import overrides
from realtime_service.routing.overrides import Policy
from realtime_service.routing.snapshot import Snapshot
from shared_model.errors import BadInput, ReleaseError, SettingError
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.settings import StateSettings
from shared_model.trust import audit, keyring
from shared_model.trust.keyring import Keyring

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def redis_server(private_redis: RedisServer) -> RedisServer:
    return private_redis


@pytest.fixture
def ours(tmp_path: Path) -> Keyring:
    keyring.make(tmp_path, cluster=False, operator=True)
    return loaded(tmp_path)


def loaded(folder: Path, unsigned: str = "") -> Keyring:
    return keyring.load(
        StateSettings(state=folder, keys=str(folder), redis_url="redis://127.0.0.1:1", unsigned=unsigned)
    )


def set_quota(client: "redis.Redis", trusted: Keyring, quota: float) -> bytes:
    def change(stored: bytes) -> bytes:
        return overrides.change(RoutingPolicy.FromString(stored), {"quota": quota}).SerializeToString()

    return policy_command.move(client, trusted, "policy set", change)


class Replica:
    def __init__(self, url: str, trusted: Keyring) -> None:
        self.client = redis_connections.default_client(url)
        silent = heartbeat.state(ReplicaDescription(id="a"))
        self._membership = Membership(self.client, Snapshot("a"), lambda lanes: silent, Policy(), trusted)

    async def reads(self) -> Snapshot:
        await self._membership.run_once()
        return self._membership.snapshot


async def test_replicas_follow_what_an_operator_signed_and_nothing_else(
    redis_client: "redis.Redis", redis_url: str, ours: Keyring, caplog: pytest.LogCaptureFixture
) -> None:
    replica = Replica(redis_url, ours)
    first = set_quota(redis_client, ours, 5.0)
    assert (await replica.reads()).policy.quota == 5.0
    second = set_quota(redis_client, ours, 6.0)
    assert (await replica.reads()).policy.quota == 6.0
    forged = RoutingPolicy(version=2**50, quota=0.001).SerializeToString()
    for stored, why in (
        (forged, "is unsigned"),
        (second + b"\x31" + bytes(8), "has fields after its signature"),
        (second.replace(struct.pack("<d", 6.0), struct.pack("<d", 7.0)), "has a wrong signature"),
        (first, "comes after version"),
    ):
        redis_client.set(keys.routing_policy(), stored)
        for _ in range(2):
            assert (await replica.reads()).policy.quota == 6.0
        assert sum(why in line for line in caplog.messages) == 1, (why, caplog.messages)
    await replica.client.aclose()


async def test_a_replica_does_not_return_to_a_former_pointer(
    redis_client: "redis.Redis", redis_url: str, ours: Keyring, tmp_path: Path
) -> None:
    store, replica = Store(tmp_path / "releases", load_keys=lambda: ours), Replica(redis_url, ours)
    pointer.promote(store, redis_client, "small-aaaaaaaaaaaa")
    former = redis_client.hgetall(keys.release_pointer())
    assert await replica.reads()
    new = pointer.promote(store, redis_client, "small-bbbbbbbbbbbb")
    assert (await replica.reads()).pointers[""] == new
    redis_client.hset(keys.release_pointer(), mapping=former)
    assert (await replica.reads()).pointers[""] == new
    redis_client.hset(keys.release_pointer(), mapping={"version": 9})
    assert (await replica.reads()).pointers[""] == new
    await replica.client.aclose()


async def test_a_restarted_replica_refuses_a_policy_and_a_pointer_of_before(
    redis_client: "redis.Redis", redis_url: str, ours: Keyring, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its releases are a copy of their own, to which the operator's file of the pointer does not come."""
    operators, own = (Store(tmp_path / name, load_keys=lambda: loaded(tmp_path)) for name in ("operators", "own"))
    policies = [set_quota(redis_client, ours, 5.0)]
    pointer.promote(operators, redis_client, "small-aaaaaaaaaaaa")
    former = redis_client.hgetall(keys.release_pointer())
    policies.append(set_quota(redis_client, ours, 6.0))
    new = pointer.promote(operators, redis_client, "small-bbbbbbbbbbbb")
    first = Replica(redis_url, loaded(tmp_path))
    snapshot = await first.reads()
    assert (snapshot.policy.quota, snapshot.pointers.get("")) == (6.0, new)
    redis_client.set(keys.routing_policy(), policies[0])
    redis_client.hset(keys.release_pointer(), mapping=former)
    restarted = Replica(redis_url, loaded(tmp_path))
    snapshot = await restarted.reads()
    # The settings count until an operator sets a policy.
    assert (snapshot.policy.quota, snapshot.pointers.get("")) == (0.0, None)
    assert sum("comes after version" in line for line in caplog.messages) == 2
    with pytest.raises(ReleaseError, match="in Redis has version 1, which comes after version 2"):
        pointer.read(own, redis_client)
    # Operators go on from what they know.
    with pytest.raises(BadInput, match=r"comes after version .* `policy reset --all` writes it anew"):
        set_quota(redis_client, loaded(tmp_path), 7.0)
    policy_command.move(
        redis_client, loaded(tmp_path), "policy reset --all", lambda _: RoutingPolicy().SerializeToString(), True
    )
    set_quota(redis_client, loaded(tmp_path), 7.0)
    assert pointer.promote(operators, redis_client, "small-cccccccccccc").version == 3
    snapshot = await restarted.reads()
    assert (snapshot.policy.quota, snapshot.pointers.get("")) == (7.0, pointer.read(own, redis_client))
    for it in (first, restarted):
        await it.client.aclose()


def test_an_operator_does_not_sign_what_others_stored(redis_client: "redis.Redis", ours: Keyring) -> None:
    redis_client.set(keys.routing_policy(), RoutingPolicy(version=3, latency_below_ms=1.0).SerializeToString())
    with pytest.raises(BadInput, match=r"policy: is unsigned.*`policy reset --all` writes it anew"):
        set_quota(redis_client, ours, 5.0)


def test_without_the_operators_key_nothing_changes(redis_client: "redis.Redis", ours: Keyring, tmp_path: Path) -> None:
    (tmp_path / keyring.OPERATOR).unlink()
    with pytest.raises(SettingError, match=r"has no operator\.key"):
        set_quota(redis_client, loaded(tmp_path), 5.0)
    assert not redis_client.exists(keys.routing_policy(), keys.audit("routing"))


async def test_a_rolling_upgrade(redis_client: "redis.Redis", redis_url: str, ours: Keyring, tmp_path: Path) -> None:
    accepting, enforcing = Replica(redis_url, loaded(tmp_path, "accept")), Replica(redis_url, ours)
    unsigned = RoutingPolicy(version=1, quota=3.0).SerializeToString()
    redis_client.set(keys.routing_policy(), unsigned)
    assert [(await it.reads()).policy.quota for it in (accepting, enforcing)] == [3.0, 0.0]
    signed = set_quota(redis_client, loaded(tmp_path, "accept"), 4.0)
    assert [(await it.reads()).policy.quota for it in (accepting, enforcing)] == [4.0, 4.0]
    # A former version keeps the field that it does not know, behind a version that it does not cover.
    changed = RoutingPolicy.FromString(signed)
    changed.version, changed.quota = changed.version + 1, 5.0
    redis_client.set(keys.routing_policy(), changed.SerializeToString())
    assert [(await it.reads()).policy.quota for it in (accepting, enforcing)] == [5.0, 4.0]
    # A former version reads all but the signature.
    former = RoutingPolicy.FromString(signed)
    former.ClearField("signature")
    assert former == RoutingPolicy(version=2, quota=4.0)
    for it in (accepting, enforcing):
        await it.client.aclose()


def test_a_change_is_recorded_with_the_numbers_before_and_after(redis_client: "redis.Redis", ours: Keyring) -> None:
    version = RoutingPolicy.FromString(set_quota(redis_client, ours, 5.0)).version
    set_quota(redis_client, ours, 6.0)
    first, second = audit.lines(redis_client, ours)
    assert f": nothing -> version {version}: quota=5  [signed by " in first
    assert f": version {version}: quota=5 -> version {version + 1}: quota=6  [signed by " in second


async def test_a_replica_follows_the_signed_pointer_of_each_model(
    redis_client: "redis.Redis", redis_url: str, ours: Keyring, tmp_path: Path
) -> None:
    """One model's pointer is not taken for another's, and a damaged one changes none."""
    store, replica = Store(tmp_path / "releases", load_keys=lambda: ours), Replica(redis_url, ours)
    main = pointer.promote(store, redis_client, "main-aaaaaaaaaaaa")
    side = pointer.promote(store, redis_client, "side-aaaaaaaaaaaa", "side")
    # The first heartbeat learns that there is such a model, the second one reads its pointer.
    await replica.reads()
    assert (await replica.reads()).pointers == {"": main, "side": side}
    signed = redis_client.hgetall(keys.release_pointer("side"))
    redis_client.hset(keys.release_pointer(), mapping=signed)
    assert (await replica.reads()).pointers == {"": main, "side": side}
    redis_client.hset(keys.release_pointer("side"), mapping={"version": 9})
    assert (await replica.reads()).pointers == {"": main, "side": side}
    later = pointer.promote(store, redis_client, "side-bbbbbbbbbbbb", "side")
    assert (await replica.reads()).pointers["side"] == later
    await replica.client.aclose()
