"""Every call is counted once by its gRPC status, and the series that alerts ask for exist before the first call."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from realtime_service.errors import Overloaded, Status, Unauthenticated, status_of
from realtime_service.identity import Identity
from realtime_service.scheduling.calls_under_way import CallsUnderWay
from realtime_service.settings import ServiceSettings
from realtime_service.telemetry.metrics import WATCHED_CODES, Metrics
from realtime_service.transport.rpc_handlers import Arrival, Context, Handlers
from tests.realtime_service.cluster.directory import until
from tests.realtime_service.listeners import listening
from tests.realtime_service.receptions import Reception

ERRORS: dict[bytes, Exception] = {
    b"overloaded": Overloaded("too much is waiting", 0.1),
    b"unexpected": RuntimeError("a bug"),
    b"late": TimeoutError(),
}
#: The end of a call by what it says.
ENDS = {
    b"fine": "OK",
    b"overloaded": "RESOURCE_EXHAUSTED",
    b"unexpected": "INTERNAL",
    b"late": "INTERNAL",
    b"stranger": "UNAUTHENTICATED",
}


#: Names of calls that wait for ever.
waiting = list[bytes]()


async def one(raw: bytes, context: Context, arrival: Arrival) -> bytes:
    if raw.startswith(b"for ever"):
        waiting.append(raw)
        await asyncio.Event().wait()
    if raw in ERRORS:
        raise ERRORS[raw]
    return raw


async def answers(raw: bytes, context: Context, arrival: Arrival) -> None:
    await context.write(await one(raw, context, arrival))


async def several(incoming: AsyncIterator[bytes], context: Context, arrival: Arrival) -> None:
    async for raw in incoming:
        await context.write(await one(raw, context, arrival))


async def identify(context: Context) -> Identity:
    if any(name == "stranger" for name, _ in context.invocation_metadata() or ()):
        raise Unauthenticated("the token is not valid")
    return Identity("addr:x", "addr:x")


def shed(raw: bytes, context: Context, ahead: int) -> Status | None:
    return status_of(Overloaded("the answer would come too late", 0.1)) if raw == b"shed" else None


def handlers() -> "grpc.GenericRpcHandler[Any, Any]":
    make = Handlers(Reception(identify))
    methods = {"One": make.unary(one, shed=shed), "Answers": make.server_stream(answers)}
    return grpc.method_handlers_generic_handler("a.B", {**methods, "Several": make.bidi_stream(several)})


def counted(metrics: Metrics, method: str, code: str) -> float | None:
    return metrics.registry.get_sample_value("tandem_calls_total", {"method": method, "code": code})


Call = Callable[[grpc.aio.Channel, bytes, Any], Awaitable[grpc.StatusCode]]


async def call_one(channel: grpc.aio.Channel, raw: bytes, metadata: Any) -> grpc.StatusCode:
    return await channel.unary_unary("/a.B/One")(raw, metadata=metadata, timeout=20).code()


async def call_answers(channel: grpc.aio.Channel, raw: bytes, metadata: Any) -> grpc.StatusCode:
    return await read(channel.unary_stream("/a.B/Answers")(raw, metadata=metadata, timeout=20))


async def call_several(channel: grpc.aio.Channel, raw: bytes, metadata: Any) -> grpc.StatusCode:
    return await read(channel.stream_stream("/a.B/Several")(iter([raw]), metadata=metadata, timeout=20))


async def read(call: Any) -> grpc.StatusCode:
    """The end of a call, whose answers are read until then."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass
    code: grpc.StatusCode = await call.code()
    return code


@pytest.mark.parametrize(
    ("method", "call"), [("/a.B/One", call_one), ("/a.B/Answers", call_answers), ("/a.B/Several", call_several)]
)
async def test_each_end_of_a_call_or_a_stream_is_counted_once(method: str, call: Call) -> None:
    metrics = Metrics(())
    async with listening(handlers(), counts=metrics) as address, grpc.aio.insecure_channel(address) as channel:
        assert [counted(metrics, method, code) for code in WATCHED_CODES] == [0] * len(WATCHED_CODES)
        for raw, code in ENDS.items():
            metadata = (("stranger", "yes"),) if raw == b"stranger" else ()
            before = counted(metrics, method, code) or 0
            assert (await call(channel, raw, metadata)).name == code
            assert counted(metrics, method, code) == before + 1
    samples = [it for family in metrics.registry.collect() for it in family.samples if it.name == "tandem_calls_total"]
    assert sum(it.value for it in samples) == len(ENDS)


async def test_a_call_whose_caller_leaves_is_counted_as_cancelled() -> None:
    metrics = Metrics(())
    async with listening(handlers(), counts=metrics) as address, grpc.aio.insecure_channel(address) as channel:
        unary, stream = channel.unary_unary("/a.B/One"), channel.unary_stream("/a.B/Answers")
        left = [unary(b"for ever, one", timeout=20), stream(b"for ever, several", timeout=20)]
        await until(lambda: {b"for ever, one", b"for ever, several"} <= set(waiting))
        for it in left:
            it.cancel()
        for method in ("/a.B/One", "/a.B/Answers"):
            await until(lambda method=method: counted(metrics, method, "CANCELLED") == 1)


class Counting:
    """An `Overload` of devices that have enough work. `waited`: seconds of the calls that expired."""

    starved = False

    def __init__(self) -> None:
        self.waited = list[float]()

    def expired(self, waited: float) -> None:
        self.waited.append(waited)


async def test_a_call_whose_deadline_passes_before_it_is_read_is_counted_and_never_looked_at() -> None:
    """The event loop stands still until the deadline has passed, while many calls wait to be read."""
    metrics, looked_at, overload = Metrics(()), list[bytes](), Counting()

    def look(raw: bytes, context: Context, ahead: int) -> Status | None:
        looked_at.append(raw)
        while raw == b"slow" and time.monotonic() < sent + 1.0:
            pass
        return None

    methods = {"One": Handlers(Reception(identify)).unary(one, shed=look, overload=overload)}
    handler = grpc.method_handlers_generic_handler("a.B", methods)
    async with listening(handler, counts=metrics) as address, grpc.aio.insecure_channel(address) as channel:
        ask = channel.unary_unary("/a.B/One")
        sent = time.monotonic()
        slow = [ask(b"slow", timeout=20)] + [ask(b"fine", timeout=0.5) for _ in range(60)]
        codes = [await call.code() for call in slow]
    assert codes[0] is grpc.StatusCode.OK
    assert set(codes[1:]) <= {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED}
    assert overload.waited
    assert max(overload.waited) > 0.4
    assert counted(metrics, "/a.B/One", "DEADLINE_EXCEEDED") >= len(overload.waited)
    assert len(looked_at) <= 61 - len(overload.waited)


async def test_calls_that_end_before_their_handler_are_counted() -> None:
    metrics, few, under_way = Metrics(()), ServiceSettings(max_calls=1), CallsUnderWay()
    async with (
        listening(handlers(), settings=few, counts=metrics, calls=under_way) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        assert await call_one(channel, b"shed", ()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert counted(metrics, "/a.B/One", "RESOURCE_EXHAUSTED") == 1
        code = await channel.unary_unary("/a.B/Nothing")(b"", timeout=20).code()
        assert code is grpc.StatusCode.UNIMPLEMENTED
        assert counted(metrics, "unknown", "UNIMPLEMENTED") == 1
        first = channel.unary_unary("/a.B/One")(b"for ever, alone", timeout=20)
        await until(lambda: b"for ever, alone" in waiting)
        assert await call_one(channel, b"fine", ()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert counted(metrics, "/a.B/One", "RESOURCE_EXHAUSTED") == 2
        assert under_way.count == 1, "those that were refused are not"
        first.cancel()
        await until(lambda: under_way.count == 0)
