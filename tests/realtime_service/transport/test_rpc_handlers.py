"""The end of a call: its status reaches the caller, and nothing of it stays in memory."""

import gc
import tracemalloc
import weakref
from collections.abc import AsyncIterator, Iterator

import grpc
import grpc.aio
import pytest

from realtime_service.errors import Overloaded
from realtime_service.transport.rpc_handlers import Arrival, Context, Handlers
from tests.realtime_service.cluster.directory import until
from tests.realtime_service.listeners import listening
from tests.realtime_service.receptions import Reception


class Texts(list[str]):
    """Of a request; a list has no weak references."""


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No collection of cyclic garbage: a process that serves defers it, too."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_a_refused_request_is_gone_from_memory_at_once(uncollected: None) -> None:
    parsed = list[weakref.ref[Texts]]()

    async def refuse(raw: bytes) -> None:
        texts = Texts([raw.decode()])
        parsed.append(weakref.ref(texts))
        raise Overloaded("too much is waiting", 0.1)

    async def one(raw: bytes, context: Context, arrival: Arrival) -> None:
        await refuse(raw)

    async def several(incoming: AsyncIterator[bytes], context: Context, arrival: Arrival) -> None:
        async for raw in incoming:
            await refuse(raw)

    make = Handlers(Reception())
    methods = {"One": make.unary(one), "Several": make.bidi_stream(several), "Answers": make.server_stream(one)}
    served = grpc.method_handlers_generic_handler("a.B", methods)
    async with listening(served) as address, grpc.aio.insecure_channel(address) as channel:
        calls = (
            channel.unary_unary("/a.B/One")(b"hello", timeout=20),  # type: ignore[call-arg]
            channel.stream_stream("/a.B/Several")(iter([b"hello"]), timeout=20),  # type: ignore[call-arg]
            channel.unary_stream("/a.B/Answers")(b"hello", timeout=20),  # type: ignore[call-arg]
        )
        for call in calls:
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await call.details() == "too much is waiting; retry in 100 ms"
            assert ("retry-after-ms", "100") in tuple(await call.trailing_metadata())
        assert len(parsed) == 3
        await until(lambda: [it() for it in parsed] == [None] * 3)


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


async def test_a_stream_on_which_nothing_comes_keeps_no_message(traced: None) -> None:
    """Ten idle streams. The client's message is one object."""
    message, sizes = bytes(2_000_000), list[int]()

    async def answer(incoming: AsyncIterator[bytes], context: Context, arrival: Arrival) -> None:
        async for raw in incoming:
            sizes.append(len(raw))
            del raw

    def large() -> int:
        return sum(trace.size >= len(message) for trace in tracemalloc.take_snapshot().traces)

    methods = {"Many": Handlers(Reception()).bidi_stream(answer)}
    served = grpc.method_handlers_generic_handler("a.B", methods)
    async with listening(served) as address, grpc.aio.insecure_channel(address) as channel:
        calls = [channel.stream_stream("/a.B/Many")(timeout=30) for _ in range(10)]  # type: ignore[call-arg]
        for call in calls:
            await call.write(message)
        await until(lambda: len(sizes) == 10 and large() <= 2)
        for call in calls:
            await call.done_writing()
