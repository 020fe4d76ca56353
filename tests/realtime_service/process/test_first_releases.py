"""The releases that a process knows when it starts: of every model, before it answers its first call."""

from pathlib import Path

import pytest
import redis

from realtime_service.models.registry import Roles, Serving
from realtime_service.process.main import _first
from realtime_service.settings import ServiceSettings
from shared_model.errors import ReleaseError
from shared_model.redis_store import keys
from shared_model.releases import pointer
from shared_model.releases.store import Store

MAIN, SIDE, SIDE_2 = "main-aaaaaaaaaaaa", "side-aaaaaaaaaaaa", "side-bbbbbbbbbbbb"
OTHERS = {"side": Roles(SIDE, SIDE_2, 0.25)}
PINNED, ROUTER = ServiceSettings(release="main-bbbbbbbbbbbb"), ServiceSettings(lanes="none")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_a_process_that_starts_knows_every_model(store: Store, redis_client: "redis.Redis") -> None:
    pointer.promote(store, redis_client, MAIN)
    pointer.promote(store, redis_client, SIDE, "side")
    pointer.start_canary(store, redis_client, SIDE_2, 0.25, "side")
    assert _first(ServiceSettings(), store, redis_client) == Serving({}, MAIN, others=OTHERS)
    assert _first(PINNED, store, redis_client) == Serving({}, PINNED.release, others=OTHERS)
    assert _first(ROUTER, store, redis_client) == Serving({}, "", others=OTHERS)


def test_a_damaged_pointer_keeps_only_those_from_starting_that_follow_it(
    store: Store, redis_client: "redis.Redis"
) -> None:
    redis_client.hset(keys.release_pointer(), mapping={"version": "x"})
    assert _first(PINNED, store, redis_client) == Serving({}, PINNED.release)
    assert _first(ROUTER, store, redis_client) == Serving({}, "")
    with pytest.raises(ReleaseError, match="is damaged"):
        _first(ServiceSettings(), store, redis_client)


def test_without_a_release_only_a_router_starts(store: Store, redis_client: "redis.Redis") -> None:
    assert _first(ROUTER, store, redis_client) == Serving({}, "")
    with pytest.raises(ReleaseError, match="no release is active"):
        _first(ServiceSettings(), store, redis_client)
