"""Redis is frozen, killed and brought back while calls are made: scoring goes on, deferral is refused."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import redis

from protos.scoring.v1.storage_pb2 import PublishedScore
from realtime_service.client import Client
from shared_model.published.epochs import Epoch
from shared_model.published.publish import publish
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.settings import StateSettings
from shared_model.types import DeferredState, Priority, ServingPath
from tests.realtime_service.conftest import RunningService, eventually, start_service
from tests.realtime_service.rollout import tiny_releases

pytestmark = pytest.mark.heavy

#: One way to ask for each device path.
WAYS = {
    ServingPath.LATENCY: {"priority": Priority.REAL_TIME},
    ServingPath.DYNAMIC: {"timeout_ms": 900},
    ServingPath.THROUGHPUT: {"priority": Priority.BATCH},
}
PUBLISHED = "a text that was scored last night"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> StateSettings:
    # Acknowledged writes survive a kill, on a busy disk too.
    return StateSettings(state=tmp_path_factory.mktemp("state"), redis_fsync="always")


@pytest.fixture(scope="module")
def own_redis(state: StateSettings) -> Iterator[RedisServer]:
    """A server of this module's own, because it will be killed."""
    with RedisServer(state) as server:
        yield server


@pytest.fixture(scope="module")
def service(own_redis: RedisServer, state: StateSettings) -> Iterator[RunningService]:
    store = Store(state.state / "releases")
    release = tiny_releases.seal_counting(store, "tiny")
    pointer.promote(store, None, release.id)
    encoder = release.encoder()
    score = PublishedScore(labels=[0], scores=[1.0], tokens=9)
    with redis.Redis.from_url(own_redis.url) as client:
        publish(
            client, Epoch(release.id, "bf16", "2026-01-14", 1), {encoder.key(encoder.encode(PUBLISHED)): score}.items()
        )
    running = start_service(state.state / "service", Path(store.files.root), REDIS_URL=own_redis.url)
    yield running
    assert running.stop() == 0


def call_every_device_path(client: Client, times: int) -> None:
    for number in range(times):
        for path, way in WAYS.items():
            assert client.score(f"call number {number}", **way).path == path


def test_scoring_survives_a_frozen_then_killed_redis_and_deferral_comes_back_with_it(
    service: RunningService, own_redis: RedisServer, state: StateSettings
) -> None:
    pid = own_redis.pid
    assert pid
    with Client(service.address) as client:
        call_every_device_path(client, 3)
        eventually(lambda: client.score(PUBLISHED).path == ServingPath.PRECOMPUTED)
        client.submit("before", "accepted while Redis was there")

        os.kill(pid, signal.SIGSTOP)
        # The filter matches and Redis does not answer: the device answers instead.
        assert client.score(PUBLISHED, priority=Priority.REAL_TIME).path == ServingPath.LATENCY
        call_every_device_path(client, 10)

        os.kill(pid, signal.SIGKILL)
        call_every_device_path(client, 30)
        with pytest.raises(grpc.RpcError) as refusal:
            client.submit("during", "Redis is gone")
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        eventually(lambda: not client.describe().redis_available)
        call_every_device_path(client, 10)

        with RedisServer(state) as revived:
            assert revived.url == own_redis.url
            eventually(lambda: client.describe().redis_available)
            # Acknowledged requests are still stored, and are answered.
            eventually(lambda: client.result("before").state == DeferredState.PUBLISHED)
            client.submit("after", "Redis is back")
            eventually(lambda: client.result("after").state == DeferredState.PUBLISHED)
            eventually(lambda: client.score(PUBLISHED).path == ServingPath.PRECOMPUTED)
            call_every_device_path(client, 3)
