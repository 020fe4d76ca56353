"""The health service: it parses like the others, and its watchers see each change."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from realtime_service.settings import SERVED
from realtime_service.transport.health import Readiness
from realtime_service.transport.listener import bind, make_listener
from shared_model.types import ServingPath

SERVICE = "scoring.v1.ScoringService"
_STATES = health_pb2.HealthCheckResponse.ServingStatus


@contextlib.asynccontextmanager
async def healthy() -> AsyncIterator[tuple[Readiness, Any]]:
    readiness, listener = Readiness((SERVICE,), SERVED), make_listener(shared=False)
    listener.add_generic_rpc_handlers((readiness.handlers(),))
    address = bind(listener, "127.0.0.1:0")
    await listener.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield readiness, channel
    finally:
        await listener.stop(None)


@pytest.mark.parametrize("raw", [b"\xff", b"\x0a\x01\xff", b"\x0a\xff\xff\xff\xff\x0f"])
async def test_bytes_that_are_no_message_are_invalid(raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with healthy() as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/grpc.health.v1.Health/Check")(raw)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(raw)
        assert await watch.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records


async def test_a_watch_brings_each_change_and_of_an_unknown_name_that_it_is_unknown() -> None:
    async with healthy() as (readiness, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        unknown = stub.Watch(health_pb2.HealthCheckRequest(service="other"))

        async def told(stream: Any) -> str:
            return str(_STATES.Name((await asyncio.wait_for(stream.read(), 20)).status))

        assert await told(watch) == "NOT_SERVING"
        assert await told(unknown) == "SERVICE_UNKNOWN"
        readiness.set(ServingPath.DYNAMIC, True)
        assert await told(watch) == "SERVING"
        readiness.close()
        assert await told(watch) == "NOT_SERVING"
        readiness.set(ServingPath.LATENCY, True)
        check = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert check.status == health_pb2.HealthCheckResponse.NOT_SERVING
