"""Parsing of Redis URLs, and clients that never repeat a command."""

import asyncio
import socket
import threading
import time
from typing import Any

import pytest
import redis
import redis.asyncio

from shared_model.redis_store import clients
from tests.realtime_service.conftest import eventually

WAITS = {"timeout": 0.2, "connect_timeout": 0.2}


def test_a_url_of_sentinels_names_them_their_service_and_what_redis_asks_for() -> None:
    url = "redis+sentinel://us%40er:pass%3Aword@one:26379,[::1]:26380/tandem/3"
    client = clients.connect_asyncio(url, **WAITS)
    pool = client.connection_pool
    sentinels = [it.connection_pool.connection_kwargs for it in pool.sentinel_manager.sentinels]
    assert [(it["host"], it["port"]) for it in sentinels] == [("one", 26379), ("::1", 26380)]
    assert pool.service_name == "tandem"
    asked = pool.connection_kwargs
    assert (asked["username"], asked["password"], asked["db"]) == ("us@er", "pass:word", 3)
    assert sentinels[0]["password"] is None


@pytest.mark.parametrize(
    "url",
    ["redis+sentinel://one:26379", "redis+sentinel://one/tandem", "redis+sentinel://one:port/tandem", "http://one", ""],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - its text is the library's, and is not shown
        clients.check(url)


def connections_of(call: "redis.Redis", listening: socket.socket) -> int:
    """How often a client knocks at a server that takes connections and says nothing."""
    met: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                met.append(listening.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept)
    thread.start()
    with pytest.raises(redis.RedisError):
        call.get("key")
    # The thread may learn of a connection after its client has given up.
    eventually(lambda: met)
    listening.shutdown(socket.SHUT_RDWR)
    thread.join()
    for connection in met:
        connection.close()
    return len(met)


@pytest.mark.parametrize("form", ["redis://127.0.0.1:{}", "redis+sentinel://127.0.0.1:{}/tandem"])
def test_a_client_gives_up_after_one_attempt(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        started = time.monotonic()
        with clients.connect(form.format(listening.getsockname()[1]), **WAITS) as client:
            assert connections_of(client, listening) == 1
        assert time.monotonic() - started < 3


async def test_a_reply_that_is_late_answers_no_other_command(redis_client: "redis.Redis", redis_url: str) -> None:
    redis_client.mset({"one": "1", "two": "2"})
    async with clients.connect_asyncio(redis_url, **WAITS) as client:
        assert await client.get("one") == b"1"
        redis_client.client_pause(600)
        with pytest.raises(redis.TimeoutError, match=r"no reply within 0\.2 s"):
            await client.get("one")
        redis_client.client_unpause()
        assert [await client.get("two") for _ in range(2)] == [b"2", b"2"]


async def test_a_command_makes_no_task(redis_client: "redis.Redis", redis_url: str) -> None:
    made, loop = list[object](), asyncio.get_running_loop()

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
        made.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **options)

    async with clients.connect_asyncio(redis_url, **WAITS) as client:
        await client.set("one", "1")
        loop.set_task_factory(make)
        assert await client.get("one") == b"1"
        loop.set_task_factory(None)
    assert not made


@pytest.mark.parametrize("in_pipelines", [False, True])
async def test_more_commands_than_connections_wait_for_one(
    redis_client: "redis.Redis", redis_url: str, in_pipelines: bool
) -> None:
    redis_client.set("one", "1")

    async def read(client: "redis.asyncio.Redis") -> bytes:
        if not in_pipelines:
            return await client.get("one")
        async with client.pipeline(transaction=False) as pipe:
            pipe.get("one")
            return (await pipe.execute())[0]

    async with clients.connect_asyncio(redis_url, timeout=5, connect_timeout=5) as client:
        many = 5 * client.connection_pool.max_connections
        assert await asyncio.gather(*(read(client) for _ in range(many))) == [b"1"] * many
        assert redis_client.info("clients")["connected_clients"] <= client.connection_pool.max_connections + 1


async def test_a_command_waits_for_a_connection_no_longer_than_for_a_reply(
    redis_client: "redis.Redis", redis_url: str
) -> None:
    async with clients.connect_asyncio(redis_url, **WAITS) as client:
        redis_client.client_pause(1000)
        commands = (client.get("one") for _ in range(3 * client.connection_pool.max_connections))
        failed = await asyncio.gather(*commands, return_exceptions=True)
        redis_client.client_unpause()
        assert all(isinstance(it, redis.RedisError) for it in failed)
        # Some of those that waited got the connection of one that had given up.
        (said,) = {str(it) for it in failed if isinstance(it, redis.exceptions.MaxConnectionsError)}
        assert said == "more commands at once than connections, and none was free within 0.2 s"
        assert await client.get("one") is None
