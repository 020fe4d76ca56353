"""A real router in front of endpoints of one lane each, of which any may be dead: a call of Tandem's client is answered
whenever a living endpoint can take it. Without endpoints the router is not ready."""

import asyncio
import contextlib
import os
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.inference import open_inference_pb2
from protos.inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from realtime_service.client import AsyncClient
from realtime_service.client.errors import Unavailable
from realtime_service.settings import SERVED
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings
from shared_model.types import Priority, ServingPath
from tests.realtime_service.cluster.endpoint import Endpoint, serving

pytestmark = pytest.mark.heavy

LATENCY, DYNAMIC, THROUGHPUT = SERVED
SERVICE, OPEN_INFERENCE = "scoring.v1.ScoringService", "inference.GRPCInferenceService"
#: Every kind of call: its texts, how it is made, and its lanes, the best first.
KINDS: list[tuple[list[str], dict[str, Any], tuple[ServingPath, ...]]] = [
    (["one"], {"priority": Priority.REAL_TIME}, (LATENCY, DYNAMIC, THROUGHPUT)),
    (["one"], {}, (DYNAMIC, THROUGHPUT, LATENCY)),
    (["one"], {"priority": Priority.BATCH}, (THROUGHPUT, DYNAMIC, LATENCY)),
    # Several texts are never latency work.
    (["one", "two"], {}, (DYNAMIC, THROUGHPUT)),
    (["one", "two"], {"priority": Priority.BATCH}, (THROUGHPUT, DYNAMIC)),
]
#: Every subset of the lanes by one death or one start after another, as few of either as there can be.
SUBSETS = [
    {LATENCY, DYNAMIC, THROUGHPUT}, {LATENCY, DYNAMIC}, {LATENCY}, {LATENCY, THROUGHPUT}, {THROUGHPUT},
    {DYNAMIC, THROUGHPUT}, {DYNAMIC}, set(),
]  # fmt: skip


@contextlib.asynccontextmanager
async def routed(redis_url: str, folder: Path) -> AsyncIterator[tuple[Process, str]]:
    """A started router without endpoints, and its address, read from its log."""
    environ = {
        **os.environ,
        "REDIS_URL": redis_url,
        "TANDEM_STATE": str(folder),
        "TANDEM_LANES": "none",
        "TANDEM_GRPC_ADDRESS": "127.0.0.1:0",
        "TANDEM_METRICS_ADDRESS": "127.0.0.1:0",
    }
    command = (sys.executable, "-m", "realtime_service", "serve")
    process = await asyncio.create_subprocess_exec(*command, env=environ, stdout=PIPE, stderr=PIPE)
    try:
        yield process, await asyncio.wait_for(_waiting(process), 120)
    finally:
        process.kill()
        await process.communicate()


async def _waiting(process: Process) -> str:
    """The address in a router's log message that it waits for an endpoint."""
    assert process.stderr
    async for line in process.stderr:
        if waits := re.search(r"the router on (\S+) waits for an endpoint", line.decode()):
            return waits[1]
    raise AssertionError("the router ended, or does not wait")


async def health(channel: grpc.aio.Channel, *names: str) -> list[bool]:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    found = [await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10) for name in names]
    return [it.status == health_pb2.HealthCheckResponse.SERVING for it in found]


async def test_a_router_is_ready_once_an_endpoint_is_known(tmp_path: Path) -> None:
    whole = ("", SERVICE, OPEN_INFERENCE)
    with RedisServer(StateSettings(state=tmp_path)) as own:
        async with routed(own.url, tmp_path) as (router, address), grpc.aio.insecure_channel(address) as channel:
            assert router.stdout
            ready_line = asyncio.create_task(router.stdout.readline())
            stub: Any = GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
            assert await health(channel, *whole) == [False, False, False]
            assert not (await stub.ServerReady(open_inference_pb2.ServerReadyRequest(), timeout=10)).ready
            async with AsyncClient(address) as client:
                with pytest.raises(
                    Unavailable, match=f"no replica at {address} can answer: .* router without an endpoint"
                ):
                    await client.score("where is my card")
            assert not ready_line.done()
            async with serving(own.url, LATENCY):
                line = (await asyncio.wait_for(ready_line, 60)).decode()
                assert re.match(rf"ready in \S+ s: a router on {re.escape(address)}, metrics on ", line)
                assert await health(channel, *whole) == [True, True, True]
                assert await health(channel, *map(health_name, SERVED)) == [True, False, False]
                assert (await stub.ServerReady(open_inference_pb2.ServerReadyRequest(), timeout=10)).ready
            await become(channel, False, *whole)


async def test_living_endpoints_answer_for_dead_ones(tmp_path: Path) -> None:
    assert len({frozenset(it) for it in SUBSETS}) == 2 ** len(SERVED)
    living: dict[ServingPath, Endpoint] = {}
    with RedisServer(StateSettings(state=tmp_path)) as own:
        async with (
            routed(own.url, tmp_path) as (_, address),
            AsyncClient(address) as client,
            grpc.aio.insecure_channel(address) as channel,
        ):
            for alive in SUBSETS:
                await change(own.url, living, alive)
                await become(channel, True, *map(health_name, alive))
                # First while the router still counts the dead endpoints as alive, then afterwards.
                await check_all(client, alive)
                await become(channel, False, *(health_name(lane) for lane in SERVED if lane not in alive))
                assert await health(channel, "", SERVICE, OPEN_INFERENCE) == [bool(alive)] * 3
                await check_all(client, alive)


async def change(redis_url: str, living: dict[ServingPath, Endpoint], alive: Collection[ServingPath]) -> None:
    """Start and kill endpoints until these are alive."""
    for lane in [it for it in living if it not in alive]:
        await living.pop(lane).die()
    for lane in [it for it in alive if it not in living]:
        living[lane] = Endpoint(redis_url, lane)
        await living[lane].start()


def health_name(lane: ServingPath) -> str:
    return f"{SERVICE}/{lane}"


async def become(channel: grpc.aio.Channel, serving: bool, *names: str) -> None:
    """Wait until all these names are SERVING, or all are NOT_SERVING."""
    async with asyncio.timeout(60):
        # Health can only be polled.
        while set(await health(channel, *names)) - {serving}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def check_all(client: AsyncClient, alive: Collection[ServingPath]) -> None:
    """Each kind of call is answered by the best lane that is alive, or refused with the reason."""
    for texts, options, lanes in KINDS:
        if able := [lane for lane in lanes if lane in alive]:
            answer = await client.score(texts, **options)
            assert (answer.path, len(answer.results)) == (able[0], len(texts))
        else:
            with pytest.raises(Unavailable, match=r"no (other )?replica (at |has|can|could)"):
                await client.score(texts, **options)
