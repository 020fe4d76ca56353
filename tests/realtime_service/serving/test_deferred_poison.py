"""A deferred text that crashes processes crashes two, fails no other request, and becomes a dead letter."""

from pathlib import Path

import pytest
import redis

from realtime_service.client import Client
from shared_model.deferred.scripts import GROUP
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.settings import StateSettings
from shared_model.types import DeferredState
from tests.realtime_service.conftest import RunningService, eventually, start_service
from tests.realtime_service.rollout import tiny_releases

pytestmark = pytest.mark.heavy

INNOCENT = [f"innocent {number}" for number in range(5)]


def age_leases(client: "redis.Redis") -> None:
    """Expire all leases, as if their consumers had died a minute ago."""
    for held in client.xpending_range(keys.deferred_stream(), GROUP, "-", "+", 100):
        script = "return redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'IDLE', 60000, 'JUSTID')"
        client.eval(script, 1, keys.deferred_stream(), GROUP, held["consumer"], held["message_id"])


def test_the_third_process_lives(tmp_path: Path) -> None:
    store = Store(tmp_path / "releases")
    pointer.promote(store, None, tiny_releases.seal_poisonable(store, "poisonable").id)

    def start(name: str) -> RunningService:
        return start_service(tmp_path / name, tmp_path / "releases", REDIS_URL=server.url)

    with RedisServer(StateSettings(state=tmp_path)) as server, redis.Redis.from_url(server.url) as stored:
        lazy = start_service(tmp_path / "lazy", tmp_path / "releases", REDIS_URL=server.url, TANDEM_HARVEST="false")
        with Client(lazy.address) as client:
            for request_id in [*INNOCENT, "poison"]:
                client.submit(request_id, tiny_releases.POISON if request_id == "poison" else "my card")
        assert lazy.stop() == 0
        for name in ("first", "second"):
            victim = start(name)
            assert victim.process.wait(timeout=30) < 0
            age_leases(stored)
        survivor = start("third")
        with Client(survivor.address) as client:
            eventually(lambda: client.result("poison").state is DeferredState.FAILED)
            assert "given up" in client.result("poison").failure
            ends = list(client.watch(INNOCENT))
            assert [end.state for end in ends] == [DeferredState.PUBLISHED] * len(INNOCENT)
        assert stored.xlen(keys.dead_letters()) == 1
        assert survivor.stop() == 0
