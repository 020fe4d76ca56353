"""Tokens only grow, a superseded attempt hears of it within seconds, and a missing Redis is no verdict."""

import threading
from pathlib import Path

import pytest
import redis

from batch_job.tables.fence import Fence, Watch, connect, latest_token
from shared_model.errors import JobError, Stale, StoreUnavailable
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings

DAY = "2026-01-14"


def test_every_attempt_takes_a_larger_token(client: "redis.Redis") -> None:
    assert [Fence.take(client, DAY, -1).token for _ in range(3)] == [1, 2, 3]
    assert Fence.take(client, "2026-01-15", -1).token == 1


def test_the_table_is_the_floor_when_redis_forgot(client: "redis.Redis") -> None:
    assert Fence.take(client, DAY, 7).token == 8
    assert Fence.take(client, DAY, 7).token == 9
    client.flushall()
    assert Fence.take(client, DAY, 9).token == 10


def test_only_the_latest_attempt_passes(client: "redis.Redis") -> None:
    first = Fence.take(client, DAY, -1)
    first.check()
    second = Fence.take(client, DAY, -1)
    second.check()
    with pytest.raises(Stale, match="attempt 2 at ds=2026-01-14 has begun, this is attempt 1"):
        first.check()


@pytest.mark.heavy
def test_redis_away_is_no_verdict_but_no_token_either(tmp_path: Path) -> None:
    with RedisServer(StateSettings(state=tmp_path)) as server, connect(server.url) as client:
        fence = Fence.take(client, DAY, -1)
        url = server.url
    with connect(url) as client:
        fence = Fence(client, DAY, fence.token)
        fence.check()
        assert latest_token(client, DAY) is None
        with pytest.raises(StoreUnavailable, match="no token for ds=2026-01-14"):
            Fence.take(client, DAY, -1)


def test_a_watched_attempt_is_stopped_within_five_seconds(client: "redis.Redis") -> None:
    fence, stopped = Fence.take(client, DAY, -1), threading.Event()
    with pytest.raises(Stale), Watch(fence, stopped.set):  # noqa: PT012 (the error is raised on leaving)
        Fence.take(client, DAY, -1)
        in_time = stopped.wait(5)
        raise JobError("the job was cancelled")
    # Outside: a failure in there would be taken for what the stopping broke.
    assert in_time


def test_a_watched_attempt_that_is_the_latest_fails_for_its_own_reasons(client: "redis.Redis") -> None:
    fence, stopped = Fence.take(client, DAY, -1), threading.Event()
    with pytest.raises(JobError), Watch(fence, stopped.set, seconds=0.01):  # noqa: PT012
        client.set(keys.partition_token("2026-01-15"), 99)
        assert not stopped.wait(0.1)
        raise JobError("its own")
