"""A signed pointer: a writer of Redis or the file cannot change it, nor bring back one of before."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import redis

from protos.scoring.v1.storage_pb2 import RoutingPolicy
from shared_model.errors import ReleaseError, SettingError
from shared_model.redis_store import keys
from shared_model.releases import pointer
from shared_model.releases.pointer import Pointer
from shared_model.releases.store import Store
from shared_model.settings import StateSettings
from shared_model.trust import audit, keyring, policy_signature
from shared_model.trust.keyring import OPERATOR, Keyring

A, B, C = (f"small-{digit * 12}" for digit in "abc")
#: Fields that a former version writes and reads.
FORMER_SCRIPT = (
    "redis.call('HSET', KEYS[1], 'version', ARGV[1], 'active', ARGV[2], 'previous', '', 'canary', '', 'weight', '0.0')"
)


@pytest.fixture
def state(tmp_path: Path, redis_url: str) -> StateSettings:
    keyring.make(tmp_path / "keys", cluster=False, operator=True)
    (tmp_path / "keys" / keyring.UNSETTLED).unlink()
    return StateSettings(state=tmp_path, redis_url=redis_url)


@pytest.fixture
def store(state: StateSettings) -> Store:
    return Store.from_settings(state)


def reader(state: StateSettings, unsigned: str = "") -> Keyring:
    return keyring.load(StateSettings(state=state.state, redis_url=state.redis_url, unsigned=unsigned))


def in_redis(client: "redis.Redis", trusted: Keyring) -> Pointer | None:
    return pointer.decode(client.hgetall(keys.release_pointer()), trusted)


def test_a_promotion_is_signed_in_redis_and_in_its_file(
    state: StateSettings, store: Store, redis_client: "redis.Redis"
) -> None:
    new = pointer.promote(store, redis_client, A)
    assert in_redis(redis_client, store.keys) == pointer.read_file(store) == new == Pointer(1, A)
    # A former version reads the fields that it knows.
    assert (
        pointer.parse({k.decode(): v.decode() for k, v in redis_client.hgetall(keys.release_pointer()).items()}) == new
    )


@pytest.mark.parametrize("changed", [{"active": B}, {"version": 7}, {"canary": B, "weight": 0.5}, {"previous": B}])
def test_a_changed_copy_is_refused_and_the_other_one_counts(
    store: Store, redis_client: "redis.Redis", changed: dict[str, str]
) -> None:
    new = pointer.promote(store, redis_client, A)
    redis_client.hset(keys.release_pointer(), mapping=changed)
    with pytest.raises(ReleaseError, match=r"in Redis (has a wrong signature|is unsigned)"):
        in_redis(redis_client, store.keys)
    assert pointer.read(store, redis_client) == new
    store.files.write(pointer.FILE, json.dumps({**json.loads(store.files.read(pointer.FILE)), **changed}).encode())
    with pytest.raises(ReleaseError):
        pointer.read(store, redis_client)


def test_a_signed_older_pointer_is_not_promoted_again_by_a_writer_of_redis(
    store: Store, redis_client: "redis.Redis"
) -> None:
    pointer.promote(store, redis_client, A)
    former = redis_client.hgetall(keys.release_pointer())
    new = pointer.promote(store, redis_client, B)
    redis_client.hset(keys.release_pointer(), mapping=former)
    assert in_redis(redis_client, store.keys) == Pointer(1, A)
    assert pointer.read(store, redis_client) == new


def test_without_the_operators_key_a_promotion_is_refused_in_one_line(
    state: StateSettings, store: Store, redis_client: "redis.Redis"
) -> None:
    (state.keys_dir / OPERATOR).unlink()
    with pytest.raises(SettingError, match=r"has no operator.key.*run this where an operator's key is") as refused:
        pointer.promote(store, redis_client, A)
    assert "\n" not in str(refused.value)
    assert not redis_client.exists(*pointer.script_keys())


def test_a_rolling_upgrade(state: StateSettings, store: Store, redis_client: "redis.Redis") -> None:
    """New replicas accept the unsigned first; then operators sign; then replicas accept no more."""
    redis_client.eval(FORMER_SCRIPT, 1, keys.release_pointer(), 1, A)
    assert in_redis(redis_client, reader(state, "accept")) == Pointer(1, A)
    with pytest.raises(ReleaseError, match="is unsigned"):
        in_redis(redis_client, reader(state))
    store.files.write(pointer.FILE, json.dumps(asdict(Pointer(1, A))).encode())
    accepting = Store(store.files.root, load_keys=lambda: reader(state, "accept"))
    assert pointer.promote(accepting, redis_client, B) == Pointer(2, B, previous=A)
    assert in_redis(redis_client, reader(state)) == Pointer(2, B, previous=A)
    # A promotion by a former version leaves the signature of the one before.
    redis_client.eval(FORMER_SCRIPT, 1, keys.release_pointer(), 3, C)
    assert in_redis(redis_client, reader(state, "accept")) == Pointer(3, C)
    with pytest.raises(ReleaseError, match="is unsigned"):
        in_redis(redis_client, reader(state))


def test_what_was_stored_before_the_first_key_is_signed_once(tmp_path: Path, redis_client: "redis.Redis") -> None:
    pointer.promote(Store(tmp_path / "releases"), redis_client, A)
    redis_client.set(keys.routing_policy(), RoutingPolicy(version=3, quota=5.0).SerializeToString())
    made = lambda: keyring.load(StateSettings(state=tmp_path))  # noqa: E731
    store = Store(tmp_path / "releases", load_keys=made)
    assert pointer.read(store, redis_client) == Pointer(1, A)
    assert in_redis(redis_client, store.keys) == pointer.read_file(store) == Pointer(1, A)
    policy_signature.check(redis_client.get(keys.routing_policy()), store.keys)
    assert not store.keys.unsettled
    # From now on, nothing unsigned counts.
    redis_client.eval(FORMER_SCRIPT, 1, keys.release_pointer(), 2, B)
    assert pointer.read(store, redis_client) == Pointer(1, A)


def test_another_state_folder_with_the_same_releases_trusts_their_operator(
    tmp_path: Path, redis_client: "redis.Redis"
) -> None:
    first = Store(tmp_path, load_keys=lambda: keyring.load(StateSettings(state=tmp_path / "first")))
    pointer.promote(first, redis_client, A)
    redis_client.flushall()
    second = Store(tmp_path, load_keys=lambda: keyring.load(StateSettings(state=tmp_path / "second")))
    assert pointer.read(second, redis_client) == Pointer(1, A)
    assert set(second.keys.operators) > set(first.keys.operators)


def test_each_change_is_recorded_with_its_operator(
    state: StateSettings, store: Store, redis_client: "redis.Redis"
) -> None:
    pointer.promote(store, redis_client, A)
    pointer.start_canary(store, redis_client, B, 0.25)
    pointer.rollback(store, redis_client)
    promoted, canary, rollback = audit.lines(redis_client, store.keys)
    assert "  promote  by " in promoted
    assert f": nothing -> version 1: {A}  [signed by " in promoted
    assert "  canary  by " in canary
    assert f"version 1: {A} -> version 2: {A}, {B} for 25.00%" in canary
    assert f"-> version 3: {A}  [signed by " in rollback
    # A writer of Redis may add and change records, but not sign them.
    record = redis_client.xrange(keys.audit("release"))[0][1]
    redis_client.xadd(keys.audit("release"), {**record, b"record": record[b"record"].replace(A.encode(), C.encode())})
    redis_client.xadd(keys.audit("release"), {b"record": b'{"x": "\x1b[2J"}'})
    *_, changed, forged = audit.lines(redis_client, store.keys)
    assert changed.endswith("[WRONG SIGNATURE]")
    assert forged.endswith("[unsigned]")
    assert "\x1b" not in forged
