"""Redis is killed, flushed, full, read-only, without its replicas, or another one: what is acknowledged is there, what
is not is refused, and it is over soon after."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import redis.asyncio

from protos.scoring.v1.scoring_pb2 import ScoreRequest, ScoreResponse
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model.deferred import DeferredQueue, State, Submission
from shared_model.errors import StoreUnavailable
from shared_model.redis_store import clients, keys
from shared_model.redis_store.server import find_binary, wheel_binary
from shared_model.settings import DeferredSettings
from tests import redis_nodes
from tests.redis_nodes import Node, running, sentinel

pytestmark = pytest.mark.heavy

Reply = TypeVar("Reply")

#: Promised: normal again in this many seconds after an outage is over; after a flush or a restart.
NORMAL_SECONDS, REBUILT_SECONDS = 5.0, 3.0


@pytest.fixture(autouse=True, params=sorted({find_binary(), wheel_binary() or find_binary()}))
def every_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's 6.2 and a newer one of this host: they refuse in other words, and keep other files."""
    monkeypatch.setattr(redis_nodes, "find_binary", lambda: request.param)


def work(text: str) -> DeferredWork:
    return DeferredWork(request=ScoreRequest(texts=[text]))


def patient(url: str) -> "redis.asyncio.Redis":
    return clients.connect_asyncio(url, timeout=1.0, connect_timeout=1.0)


async def within(seconds: float, call: Callable[[], Awaitable[Reply]]) -> Reply:
    """Its answer, however often it is refused before."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await call()
        except StoreUnavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


class Submitter:
    """Submits, and knows what was acknowledged."""

    def __init__(self, deferred_queue: DeferredQueue) -> None:
        self.acknowledged: list[str] = []
        self.refusals = 0
        #: Ends it. It is not cancelled, because the Redis client may swallow that.
        self.over = False
        self._deferred_queue = deferred_queue
        self._number = 0

    async def run(self) -> None:
        while not self.over:
            names = [f"r{self._number + n}" for n in range(20)]
            self._number += len(names)
            try:
                outcomes = await self._deferred_queue.submit_many([Submission(it, work(it)) for it in names])
            except StoreUnavailable:
                self.refusals += 1
                await asyncio.sleep(0.01)
            else:
                self.acknowledged += [it for it, outcome in zip(names, outcomes, strict=True) if outcome]

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)

    async def lost(self) -> list[str]:
        states = await within(NORMAL_SECONDS, lambda: self._deferred_queue.states(self.acknowledged))
        return [it for it, state in zip(self.acknowledged, states, strict=True) if state is None]


async def test_a_redis_that_is_killed_under_load_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    node = Node(tmp_path, ("--appendfsync", "always"))
    with running(node):
        async with patient(node.url) as client:
            submitter = Submitter(DeferredQueue(client))
            load = asyncio.create_task(submitter.run())
            for _ in range(5):
                seen, refused = len(submitter.acknowledged), submitter.refusals
                await submitter.until(lambda seen=seen: len(submitter.acknowledged) > seen + 200)  # type: ignore[misc]
                node.kill()
                await submitter.until(lambda refused=refused: submitter.refusals > refused)  # type: ignore[misc]
                node.start()
            submitter.over = True
            await load
            assert await submitter.lost() == []
            assert len(submitter.acknowledged) > 1000


async def flush(client: "redis.asyncio.Redis", node: Node) -> None:
    await client.flushall()
    await client.script_flush()


async def restart_empty(client: "redis.asyncio.Redis", node: Node) -> None:
    node.kill()
    shutil.rmtree(node.folder)
    node.start()


@pytest.mark.parametrize("lose", [flush, restart_empty])
async def test_group_and_scripts_are_there_again_soon_and_without_errors(
    tmp_path: Path, lose: Callable[["redis.asyncio.Redis", Node], Awaitable[None]]
) -> None:
    node = Node(tmp_path)
    with running(node):
        async with patient(node.url) as client:
            deferred_queue = DeferredQueue(client)
            await deferred_queue.submit("lost", work("lost"))
            [lost] = await deferred_queue.claim("lane", 10)
            await lose(client, node)
            since = time.monotonic()
            await within(REBUILT_SECONDS, lambda: deferred_queue.submit("a", work("a")))
            [item] = await within(REBUILT_SECONDS, lambda: deferred_queue.claim("lane", 10))
            assert item.request_id == "a"
            assert time.monotonic() - since < REBUILT_SECONDS
            # A claim from before the outage is lost, and its result is refused.
            assert await deferred_queue.renew("lane", [lost]) == set()
            assert await deferred_queue.store_results([(lost, ScoreResponse())], "idle") == [False]
            assert await deferred_queue.get("lost") is None


async def refused(deferred_queue: DeferredQueue, request_id: str) -> str:
    with pytest.raises(StoreUnavailable) as error:
        await deferred_queue.submit(request_id, work(request_id))
    return str(error.value)


async def test_a_redis_that_became_read_only_refuses_and_is_normal_again(tmp_path: Path) -> None:
    node, master = Node(tmp_path / "one"), Node(tmp_path / "two")
    with running(node, master):
        async with patient(node.url) as client:
            deferred_queue = DeferredQueue(client)
            await deferred_queue.submit("before", work("before"))
            master_client = master.client()
            node.follow(master)
            assert "READONLY" in await refused(deferred_queue, "during")
            with pytest.raises(StoreUnavailable, match="READONLY"):
                await deferred_queue.claim("lane", 10)
            with node.client() as its:
                its.replicaof("NO", "ONE")
            assert await within(NORMAL_SECONDS, lambda: deferred_queue.submit("after", work("after")))
            assert await deferred_queue.states(["during", "after"]) == [None, State.ACCEPTED]
            master_client.close()


async def test_a_read_only_connection_is_dropped_so_that_the_next_finds_the_master(tmp_path: Path) -> None:
    """The address is the same; who is behind it, a proxy or a name, is another."""
    node, master = Node(tmp_path / "one"), Node(tmp_path / "two")
    with running(node, master):
        async with patient(node.url) as client:
            deferred_queue = DeferredQueue(client)
            await deferred_queue.submit("before", work("before"))
            node.follow(master)
            before = await client.client_id()
            await refused(deferred_queue, "during")
            assert await client.client_id() != before


async def test_a_full_redis_refuses_and_is_normal_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with running(node):
        async with patient(node.url) as client:
            deferred_queue = DeferredQueue(client)
            await deferred_queue.submit("before", work("before"))
            [item] = await deferred_queue.claim("lane", 10)
            await client.config_set("maxmemory", 1)
            assert "OOM" in await refused(deferred_queue, "during")
            with pytest.raises(StoreUnavailable, match="OOM"):
                await deferred_queue.store_results([(item, ScoreResponse())], "idle")
            # Leases need no memory: what was computed can be stored later.
            assert await deferred_queue.renew("lane", [item]) == {item.entry}
            await client.config_set("maxmemory", 0)
            assert await deferred_queue.store_results([(item, ScoreResponse())], "idle") == [True]
            assert await deferred_queue.submit("after", work("after")) == (State.ACCEPTED, False)
            assert await deferred_queue.get("during") is None


async def test_a_redis_without_enough_replicas_of_its_own_refuses(tmp_path: Path) -> None:
    node = Node(tmp_path, ("--min-replicas-to-write", "1"))
    with running(node):
        async with patient(node.url) as client:
            assert "NOREPLICAS" in await refused(DeferredQueue(client), "a")
            await client.config_set("min-replicas-to-write", 0)
            assert await DeferredQueue(client).submit("a", work("a")) == (State.ACCEPTED, False)


async def test_nothing_is_acknowledged_that_a_replica_does_not_have(tmp_path: Path) -> None:
    master, replica = Node(tmp_path / "master"), Node(tmp_path / "replica")
    with running(master, replica):
        async with patient(master.url) as client:
            deferred_queue = DeferredQueue(client, DeferredSettings(redis_replicas=1, redis_replicas_ms=50))
            assert "0 replicas have it, 1 must" in await refused(deferred_queue, "a")
            replica.follow(master)
            # Stored before, and by now replicated: the same id is no new work.
            assert await within(NORMAL_SECONDS, lambda: deferred_queue.submit("a", work("a"))) == (State.ACCEPTED, True)
            replica.pause()
            await refused(deferred_queue, "b")
            # That the master has it is not enough for a duplicate, either.
            await refused(deferred_queue, "b")
            replica.resume()
            assert await within(NORMAL_SECONDS, lambda: deferred_queue.submit("b", work("b"))) == (State.ACCEPTED, True)
            await client.script_flush()
            await within(NORMAL_SECONDS, lambda: deferred_queue.submit("c", work("c")))
        with replica.client() as its:
            assert its.xlen(keys.deferred_stream()) == 3


async def test_what_was_acknowledged_outlives_a_failover_and_callers_follow_it(tmp_path: Path) -> None:
    master, replica = Node(tmp_path / "master"), Node(tmp_path / "replica")
    watching = sentinel(tmp_path / "sentinel", master)
    with running(master, replica):
        replica.follow(master)
        with running(watching):
            url = f"redis+sentinel://127.0.0.1:{watching.port}/tandem"
            async with patient(url) as client:
                deferred_queue = DeferredQueue(client, DeferredSettings(redis_replicas=1))
                submitter = Submitter(deferred_queue)
                load = asyncio.create_task(submitter.run())
                await submitter.until(lambda: len(submitter.acknowledged) > 200)
                # A Sentinel learns of replicas from the master, every ten seconds unless told.
                await submitter.until(lambda: knows_replica(watching))
                master.kill()
                await submitter.until(lambda: submitter.refusals > 0)
                await submitter.until(lambda: is_master(replica))
                since = time.monotonic()
                submitter.over = True
                await load
                # The new master has no replica yet: it stores, and nothing is acknowledged.
                assert "0 replicas have it" in await last_refusal(deferred_queue)
                master.start()
                master.follow(replica)
                await within(NORMAL_SECONDS, lambda: deferred_queue.submit("after", work("after")))
                assert time.monotonic() - since < 2 * NORMAL_SECONDS
                assert await submitter.lost() == []
                assert submitter.acknowledged
            with clients.connect(url, timeout=1.0, connect_timeout=1.0) as for_threads:
                assert for_threads.config_get("port") == {"port": str(replica.port)}


async def last_refusal(deferred_queue: DeferredQueue) -> str:
    """The replies after the new master was found."""
    deadline = time.monotonic() + NORMAL_SECONDS
    while True:
        said = await refused(deferred_queue, "unreplicated")
        if "replicas" in said or time.monotonic() > deadline:
            return said
        await asyncio.sleep(0.05)


def knows_replica(watching: Node) -> bool:
    with watching.client() as client:
        return int(client.sentinel_master("tandem")["num-slaves"]) == 1


def is_master(node: Node) -> bool:
    # A client that is connected during the promotion is disconnected.
    with contextlib.suppress(redis.ConnectionError), node.client() as client:
        return bool(client.info("replication")["role"] == "master")
    return False
