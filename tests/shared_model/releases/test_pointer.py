"""The pointer says which release answers: in Redis, with a file twin for when Redis is down. Versions only grow."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import redis

from shared_model.errors import ReleaseError, StoreUnavailable
from shared_model.redis_store import keys
from shared_model.releases import pointer
from shared_model.releases.pointer import Pointer
from shared_model.releases.store import Store
from shared_model.trust import audit
from shared_model.trust.keyring import WITHOUT_KEYS

A, B, C = (f"small-{digit * 12}" for digit in "abc")


def arguments_of(new: Pointer) -> list[str]:
    """Arguments of the script that moves the pointer."""
    return pointer.script_arguments(asdict(new), audit.arguments(WITHOUT_KEYS, "promote", "", ""))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Store:
    """Another host's folder, which has no file twin."""
    return Store(tmp_path / "elsewhere")


@pytest.fixture
def no_redis() -> "redis.Redis":
    """A client whose server is not there: nothing listens on port 1."""
    return redis.Redis.from_url("redis://127.0.0.1:1", socket_timeout=1.0, retry=None)


def test_nothing_is_active_at_first(store: Store, redis_client: "redis.Redis") -> None:
    with pytest.raises(ReleaseError, match=f"no release is active in {store.files.root}: run"):
        pointer.read(store, redis_client)


def test_a_promotion_remembers_what_it_replaced(store: Store) -> None:
    assert pointer.promote(store, None, A) == Pointer(1, A)
    assert pointer.promote(store, None, B) == Pointer(2, B, previous=A)
    assert pointer.promote(store, None, C) == Pointer(3, C, previous=B)


def test_promoting_what_is_active_keeps_the_way_back(store: Store) -> None:
    pointer.promote(store, None, A)
    pointer.promote(store, None, B)
    assert pointer.promote(store, None, B) == Pointer(3, B, previous=A)


def test_a_canary_leaves_the_active_release_alone(store: Store) -> None:
    pointer.promote(store, None, A)
    pointer.promote(store, None, B)
    assert pointer.start_canary(store, None, C, 0.05) == Pointer(3, B, previous=A, canary=C, weight=0.05)
    assert pointer.start_canary(store, None, C, 0.5) == Pointer(4, B, previous=A, canary=C, weight=0.5)
    assert pointer.promote(store, None, C) == Pointer(5, C, previous=B)


def test_a_rollback_drops_the_canary_first_then_returns_once(store: Store) -> None:
    pointer.promote(store, None, A)
    pointer.promote(store, None, B)
    pointer.start_canary(store, None, C, 0.05)
    assert pointer.rollback(store, None) == Pointer(4, B, previous=A)
    assert pointer.rollback(store, None) == Pointer(5, A)
    with pytest.raises(ReleaseError, match="nothing to roll back to"):
        pointer.rollback(store, None)
    assert pointer.read(store, None) == Pointer(5, A)


@pytest.mark.parametrize("weight", [0, 1, -0.1, 1.1, float("nan"), float("inf")])
def test_a_canary_answers_a_share(store: Store, weight: float) -> None:
    promoted = pointer.promote(store, None, A)
    with pytest.raises(ReleaseError, match="is no share of the callers"):
        pointer.start_canary(store, None, B, weight)
    assert pointer.read(store, None) == promoted


def test_a_canary_needs_an_active_release_that_is_another(store: Store) -> None:
    with pytest.raises(ReleaseError, match="no release is active, so there is nothing to try a canary beside"):
        pointer.start_canary(store, None, A, 0.5)
    pointer.promote(store, None, A)
    with pytest.raises(ReleaseError, match="is the active one already"):
        pointer.start_canary(store, None, A, 0.5)


def test_what_is_set_is_read_from_either_twin(store: Store, elsewhere: Store, redis_client: "redis.Redis") -> None:
    pointer.promote(store, redis_client, A)
    pointer.promote(store, redis_client, B)
    written = pointer.start_canary(store, redis_client, C, 0.25)
    assert pointer.read(store, redis_client) == written
    assert pointer.read(store, None) == written
    assert pointer.read(elsewhere, redis_client) == written


def test_newest_version_wins_in_either_direction(store: Store, redis_client: "redis.Redis") -> None:
    pointer.promote(store, redis_client, A)
    redis_client.hset(keys.release_pointer(), mapping={"version": 7, "active": B})
    assert pointer.read(store, redis_client).active == B
    redis_client.hset(keys.release_pointer(), mapping={"version": 0, "active": B})
    assert pointer.read(store, redis_client).active == A


def test_of_equal_versions_redis_decides(store: Store, elsewhere: Store, redis_client: "redis.Redis") -> None:
    """Two hosts may promote on their own while Redis is down; all must end up with one."""
    pointer.promote(store, None, A)
    pointer.promote(elsewhere, None, B)
    redis_client.eval(pointer.SCRIPT, 2, *pointer.script_keys(), *arguments_of(pointer.read(store, None)))
    assert pointer.read(elsewhere, redis_client) == pointer.read(store, redis_client) == Pointer(1, A)


def test_a_change_passes_the_newest_twin(store: Store, elsewhere: Store, redis_client: "redis.Redis") -> None:
    redis_client.hset(keys.release_pointer(), mapping={"version": 7, "active": A})
    assert pointer.promote(store, redis_client, B) == Pointer(8, B, previous=A)
    pointer.promote(store, None, C)
    redis_client.flushall()
    assert pointer.promote(store, redis_client, A) == Pointer(10, A, previous=C)


def test_the_script_goes_forward_only(redis_client: "redis.Redis") -> None:
    def move(new: Pointer) -> int:
        return int(redis_client.eval(pointer.SCRIPT, 2, *pointer.script_keys(), *arguments_of(new)))

    assert move(Pointer(5, A)) == 0
    for version in (4, 5):
        assert move(Pointer(version, B)) == 5
    assert pointer.decode(redis_client.hgetall(keys.release_pointer())) == Pointer(5, A)
    assert move(Pointer(6, B, previous=A, canary=C, weight=0.125)) == 0
    moved = pointer.decode(redis_client.hgetall(keys.release_pointer()))
    assert moved == Pointer(6, B, previous=A, canary=C, weight=0.125)


def test_without_redis_the_file_answers(store: Store, no_redis: "redis.Redis") -> None:
    pointer.promote(store, None, A)
    assert pointer.read(store, no_redis).active == A


def test_a_redis_without_its_master_has_no_damaged_pointer(
    store: Store, elsewhere: Store, redis_client: "redis.Redis"
) -> None:
    pointer.promote(store, redis_client, A)
    redis_client.config_set("replica-serve-stale-data", "no")
    redis_client.replicaof("127.0.0.1", 1)
    try:
        with pytest.raises(redis.exceptions.MasterDownError):
            redis_client.get("key")
        assert pointer.read(store, redis_client).active == A
        with pytest.raises(ReleaseError, match="no release is active"):
            pointer.read(elsewhere, redis_client)
    finally:
        redis_client.replicaof("no", "one")
        redis_client.config_set("replica-serve-stale-data", "yes")


@pytest.mark.parametrize(
    "change",
    [
        lambda store, client: pointer.promote(store, client, C),
        lambda store, client: pointer.start_canary(store, client, C, 0.5),
        pointer.rollback,
    ],
)
def test_a_change_that_redis_did_not_hear_of_says_so(
    store: Store, tmp_path: Path, no_redis: "redis.Redis", change: Callable[[Store, "redis.Redis"], Pointer]
) -> None:
    pointer.promote(store, None, A)
    pointer.promote(store, None, B)
    with pytest.raises(StoreUnavailable, match=rf"^{tmp_path}/ACTIVE\.json names .*, but Redis was not told: "):
        change(store, no_redis)
    assert pointer.read(store, None).version == 3


_NONSENSE = [
    "", "{", "[]", "{}", '"text"', "7", "null", "\0\0\0\0", "[" * 100_000,
    *(json.dumps({"version": 1, "active": A, **broken}) for broken in (
        {"version": "x"}, {"version": -1}, {"version": 2**53}, {"version": float("inf")}, {"version": None},
        {"active": ""}, {"active": "../../elsewhere"}, {"active": 7}, {"previous": "small"}, {"previous": None},
        {"canary": B, "weight": 0}, {"canary": "", "weight": 0.5}, {"canary": B, "weight": 1.5},
        {"canary": B, "weight": "x"}, {"canary": B, "weight": float("nan")},
    )),
]  # fmt: skip


@pytest.mark.parametrize("contents", _NONSENSE)
def test_a_damaged_file_is_named_where_redis_cannot_stand_in(
    store: Store, tmp_path: Path, redis_client: "redis.Redis", contents: str
) -> None:
    pointer.promote(store, redis_client, A)
    (tmp_path / pointer.FILE).write_text(contents)
    assert pointer.read(store, redis_client) == Pointer(1, A)
    with pytest.raises(ReleaseError, match=r"ACTIVE\.json is damaged; promote a release to write it anew$"):
        pointer.read(store, None)
    assert pointer.promote(store, redis_client, B) == Pointer(2, B, previous=A)
    assert pointer.read(store, None) == Pointer(2, B, previous=A)


def spoil_fields(**fields: str) -> Callable[["redis.Redis"], object]:
    return lambda client: client.hset(keys.release_pointer(), mapping=fields)


def spoil_kind(client: "redis.Redis") -> None:
    client.delete(keys.release_pointer())
    client.set(keys.release_pointer(), "a text")


_SPOILS = [
    *(spoil_fields(version=version) for version in
      ("x", "", "-1", "1.5", "nan", "inf", "1e400", "-inf", "1e300", str(2**53), "9" * 30, "0x7f", "1e3")),
    spoil_fields(active=""),
    spoil_fields(active="\0"),
    spoil_fields(previous="x"),
    spoil_fields(weight="nan"),
    spoil_fields(canary=B),
    spoil_kind,
]  # fmt: skip


@pytest.mark.parametrize("spoil", _SPOILS)
def test_a_damaged_hash_is_named_where_the_file_cannot_stand_in(
    store: Store, elsewhere: Store, redis_client: "redis.Redis", spoil: Callable[["redis.Redis"], object]
) -> None:
    pointer.promote(store, redis_client, A)
    spoil(redis_client)
    assert pointer.read(store, redis_client) == Pointer(1, A)
    with pytest.raises(ReleaseError, match=f"^{keys.release_pointer()} in Redis is .*; promote a release to write it"):
        pointer.read(elsewhere, redis_client)
    promoted = pointer.promote(store, redis_client, B)
    assert promoted.version > 1
    assert pointer.read(store, None) == pointer.read(elsewhere, redis_client) == promoted


def test_only_a_release_id_can_answer(store: Store, tmp_path: Path) -> None:
    for change in (
        lambda: pointer.promote(store, None, "../../elsewhere"),
        lambda: pointer.start_canary(store, None, "../../elsewhere", 0.5),
    ):
        with pytest.raises(ReleaseError, match="is not a release id"):
            change()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_named(store: Store, tmp_path: Path) -> None:
    (tmp_path / pointer.FILE).mkdir()
    with pytest.raises(ReleaseError, match=r"ACTIVE\.json cannot be written"):
        pointer.promote(store, None, A)
