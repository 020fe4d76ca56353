"""The peer stream, which carries many calls: answers, failures, and the end of the stream."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.scoring.v1.link_pb2 import LinkAnswers, LinkCall, LinkCalls
from realtime_service.cluster import forwarded_context, peer_stream
from realtime_service.cluster.peer_stream import PeerStream
from realtime_service.cluster.peers import STREAM_BYTES, Peer
from realtime_service.cluster.write_coalescer import TOGETHER, WriteCoalescer
from realtime_service.rpc.retryable import Failure, by_transport, failure_of
from realtime_service.transport import rpc_handlers
from realtime_service.transport.listener import bind, make_listener
from realtime_service.transport.peer_stream_server import WINDOW, PeerStreams
from realtime_service.transport.rpc_handlers import Arrival, CallerMethod
from realtime_service.transport.streaming import OpenStreams
from tests.realtime_service.cluster.directory import SCORE, until
from tests.realtime_service.cluster.stub import Big, Stub, Takes
from tests.realtime_service.cluster.trusts import trusting
from tests.realtime_service.listeners import listening
from tests.realtime_service.receptions import Reception

_NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True).filter(lambda name: not name.endswith("-bin"))
_PAIRS = st.tuples(_NAMES, st.text()) | st.tuples(_NAMES.map(lambda name: f"{name}-bin"), st.binary())


class Replica:
    """Answers calls on peer streams. `opened`: how many of those were opened."""

    def __init__(self, stub: Stub) -> None:
        self.stub = stub
        self.streams = OpenStreams()
        self.opened = 0
        self.listener = make_listener(shared=False)
        self.address = bind(self.listener, "127.0.0.1:0")
        self._served: Any = PeerStreams([stub], [SCORE], self.streams, trusting()).handlers()
        handler = grpc.stream_stream_rpc_method_handler(self._serve, None, bytes_of)
        counting = grpc.method_handlers_generic_handler(peer_stream.SERVICE, {peer_stream.METHOD: handler})
        self.listener.add_generic_rpc_handlers((counting, stub))

    async def _serve(self, requests: AsyncIterator[bytes], context: Any) -> None:
        self.opened += 1
        details = SimpleNamespace(method=f"/{peer_stream.SERVICE}/{peer_stream.METHOD}")
        await self._served.service(details).stream_stream(requests, context)


def bytes_of(message: Any) -> bytes:
    return bytes(message.SerializeToString())


@contextlib.asynccontextmanager
async def connected(*steps: Takes | Big | None) -> AsyncIterator[tuple[Replica, Peer]]:
    replica = Replica(Stub(*steps))
    await replica.listener.start()
    peer = Peer(replica.address, trusting())
    try:
        yield replica, peer
    finally:
        await peer.close()
        await replica.listener.stop(None)


async def test_many_calls_share_a_stream_and_each_gets_its_own_answer() -> None:
    # The first call is answered last.
    async with connected(Takes(0.3), Takes(0.2), Takes(0.1), None) as (replica, peer):
        asked = [str(number).encode() * 3 for number in range(300)]
        answers = await asyncio.gather(*(peer.call(SCORE, raw, 20.0, ()) for raw in asked))
    assert answers == [raw[::-1] for raw in asked]
    assert replica.opened == 1


async def test_a_large_call_is_unary() -> None:
    async with connected() as (replica, peer):
        raw = b"a" + bytes(STREAM_BYTES)
        assert await peer.call(SCORE, raw, 20.0, ()) == raw[::-1]
        assert replica.opened == 0
        assert await peer.call(SCORE, raw[1:], 20.0, ()) == raw[1:]
    assert replica.opened == 1


async def test_calls_that_share_a_message_are_never_too_large() -> None:
    async with connected() as (_, peer):
        raw = bytes(STREAM_BYTES)
        metadata = (("x-caller-id", "c" * 256),)
        answers = await asyncio.gather(*(peer.call(SCORE, raw, 20.0, metadata) for _ in range(200)))
    assert answers == [raw] * 200


async def test_a_replica_that_leaves_answers_all_calls_before_its_stream_ends() -> None:
    async with connected(Takes(0.02)) as (replica, peer):

        async def calls() -> list[bytes]:
            return [await peer.call(SCORE, b"hello", 20.0, ()) for _ in range(25)]

        callers = [asyncio.create_task(calls()) for _ in range(8)]
        for opened in (1, 2, 3):
            await until(lambda opened=opened: replica.opened == opened)  # type: ignore[misc]
            await until(lambda opened=opened: len(replica.stub.asked) > 40 * opened)  # type: ignore[misc]
            replica.streams.close()
        assert await asyncio.gather(*callers) == [[b"olleh"] * 25] * 8
        # No call was repeated.
        assert len(replica.stub.asked) == 200
        # The streams that it left have ended; the last one has no call under way, so that the listener can stop.
        replica.streams.close()
        await asyncio.wait_for(replica.listener.stop(10.0), 5.0)


async def test_calls_under_way_are_lost_with_the_stream() -> None:
    async with connected(Takes(20)) as (replica, peer):
        call = asyncio.create_task(peer.call(SCORE, b"hello", 20.0, ()))
        await until(lambda: replica.stub.asked)
        await replica.listener.stop(None)
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await call
    code, details = lost.value.code(), lost.value.details() or ""
    assert failure_of(code, details, None) is Failure.LOST
    assert by_transport(details)
    # The call's handler is cancelled, too.
    await until(lambda: replica.stub.left == 1)


async def test_a_call_to_an_address_without_listener_was_not_sent() -> None:
    peer = Peer("127.0.0.1:1", trusting())
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await peer.call(SCORE, b"hello", 20.0, ())
    assert failure_of(refused.value.code(), refused.value.details() or "", None) is Failure.NOT_SENT
    await peer.close()


async def test_a_method_that_does_not_exist_is_refused_and_the_others_go_on() -> None:
    async with answered_by(echo) as peer:
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await peer.call("/a.B/D", b"hello", 20.0, ())
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert await peer.call("/a.B/C", b"hello", 20.0, ()) == b"hello"


@contextlib.asynccontextmanager
async def peer_of(served: grpc.GenericRpcHandler) -> AsyncIterator[Peer]:
    async with listening(served) as address:
        peer = Peer(address, trusting())
        yield peer
        await peer.close()


@contextlib.asynccontextmanager
async def answered_by(method: CallerMethod) -> AsyncIterator[Peer]:
    answering = grpc.method_handlers_generic_handler("a.B", {"C": rpc_handlers.Handlers(Reception()).unary(method)})
    async with peer_of(PeerStreams([answering], ["/a.B/C"], OpenStreams(), trusting()).handlers()) as peer:
        yield peer


async def cancelled(raw: bytes, context: rpc_handlers.Context, arrival: Arrival) -> bytes:
    raise asyncio.CancelledError


async def not_a_message(raw: bytes, context: rpc_handlers.Context, arrival: Arrival) -> int:
    return 1


async def echo(raw: bytes, context: rpc_handlers.Context, arrival: Arrival) -> bytes:
    return raw


@pytest.mark.parametrize(
    ("method", "metadata", "code"),
    [
        (cancelled, (), grpc.StatusCode.CANCELLED),
        (not_a_message, (), grpc.StatusCode.INTERNAL),
        (echo, (("bad", b"\xff"),), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_each_way_to_end_a_call_reaches_its_caller(
    method: CallerMethod, metadata: forwarded_context.Metadata, code: grpc.StatusCode
) -> None:
    async with answered_by(method) as peer:
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await asyncio.wait_for(peer.call("/a.B/C", b"hello", None, metadata), 10.0)
    assert told.value.code() is code


async def test_a_malformed_message_ends_the_stream_with_invalid_argument() -> None:
    async with connected() as (replica, _), grpc.aio.insecure_channel(replica.address) as channel:
        stream = channel.stream_stream(f"/{peer_stream.SERVICE}/{peer_stream.METHOD}")(
            metadata=trusting().credentials(replica.address)
        )  # type: ignore[call-arg]
        await stream.write(b"\xff\xff\xff")
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT


async def nonsense(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for _ in requests:
        yield b"\xff\xff\xff"


async def broken(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """Ends as grpc.aio does after a write to a connection that had just broken."""
    async for _ in requests:
        await context.abort(grpc.StatusCode.INTERNAL, "Internal error from Core")
    yield b""


@pytest.mark.parametrize("answers", [nonsense, broken])
async def test_calls_are_lost_and_not_failed_however_their_stream_ends(answers: Callable[..., Any]) -> None:
    handler = grpc.stream_stream_rpc_method_handler(answers)
    served = grpc.method_handlers_generic_handler(peer_stream.SERVICE, {peer_stream.METHOD: handler})
    async with peer_of(served) as peer:
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await peer.call(SCORE, b"hello", 20.0, ())
    assert failure_of(lost.value.code(), lost.value.details() or "", None) is Failure.LOST
    assert by_transport(lost.value.details() or "")


@given(st.lists(_PAIRS))
def test_metadata_arrives_unchanged(metadata: list[tuple[str, str | bytes]]) -> None:
    sent = LinkAnswers()
    sent.answers.add(trailers=peer_stream.flat(metadata))
    (answer,) = LinkAnswers.FromString(sent.SerializeToString()).answers
    assert peer_stream.pairs(answer.trailers) == tuple(metadata)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=6))
async def test_entries_that_come_during_a_write_go_with_the_next_in_order(bursts: list[int]) -> None:
    written: list[Sequence[int]] = []
    numbers, coming = itertools.count(), iter(bursts)

    def burst() -> None:
        for _ in range(next(coming, 0)):
            write_coalescer.put(next(numbers))

    async def write(entries: Sequence[int]) -> None:
        written.append(entries)
        burst()
        if sum(map(len, written)) == sum(bursts):
            write_coalescer.close()

    write_coalescer = WriteCoalescer[int](write)
    burst()
    await write_coalescer.run()
    assert [it for some in written for it in some] == list(range(sum(bursts)))
    assert all(0 < len(some) <= TOGETHER for some in written)


async def test_a_stream_is_not_open_after_its_channel_is_closed() -> None:
    async with connected() as (replica, _):
        channel = grpc.aio.insecure_channel(replica.address)
        one = PeerStream(channel, trusting().credentials(replica.address))
        assert await one.call(SCORE, b"hello", 20.0, ()) == b"olleh"
        call = asyncio.create_task(one.call(SCORE, b"hello", 20.0, ()))
        await asyncio.sleep(0)
        await channel.close()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not one.open


@contextlib.asynccontextmanager
async def raw_stream(replica: Replica) -> AsyncIterator[Any]:
    """A peer stream of which a test writes every message itself."""
    async with grpc.aio.insecure_channel(replica.address) as channel:
        link: Any = channel.stream_stream
        yield link(f"/{peer_stream.SERVICE}/{peer_stream.METHOD}", LinkCalls.SerializeToString, LinkAnswers.FromString)(
            metadata=trusting().credentials(replica.address)
        )


def calls(numbers: Iterable[int], request: bytes = b"hello", **fields: Any) -> LinkCalls:
    return LinkCalls(calls=[LinkCall(number=it, method=SCORE, request=request, **fields) for it in numbers])


@pytest.mark.parametrize(("size", "most"), [(10, WINDOW), (40_000, WINDOW // 5)])
async def test_a_replica_that_reads_no_answers_is_not_read_from(size: int, most: int) -> None:
    # Unread answers, more than the transport buffers.
    async with connected(Big(100_000)) as (replica, _), raw_stream(replica) as stream:
        for first in itertools.count(1, TOGETHER):
            try:
                async with asyncio.timeout(1.0):
                    await stream.write(calls(range(first, first + TOGETHER), bytes(size)))
            except TimeoutError:
                break
        asked = len(replica.stub.asked)
        await asyncio.sleep(0.1)
        # Some answers fit the buffers of the transport.
        assert len(replica.stub.asked) == asked <= most + 100
        # It holds up its own stream alone.
        peer = Peer(replica.address, trusting())
        assert len(await peer.call(SCORE, b"hello", 20.0, ())) == 100_000
        await peer.close()


async def test_calls_that_are_cancelled_before_they_begin_hold_no_place() -> None:
    async with connected() as (replica, _), raw_stream(replica) as stream:
        for number in range(1, 4 * WINDOW):
            await stream.write(LinkCalls(calls=[*calls([number]).calls, LinkCall(number=number, cancelled=True)]))
            [answer] = (await stream.read()).answers
            assert (answer.number, answer.code) == (number, grpc.StatusCode.CANCELLED.value[0])
        await stream.write(calls([10**9]))
        assert [it.response for it in (await stream.read()).answers] == [b"olleh"]


@pytest.mark.parametrize(
    "message",
    [calls(range(TOGETHER + 1)), calls([7, 7]), calls([1], metadata=[b""] * 70_000)],
    ids=["too many", "the same number", "too many fields"],
)
async def test_a_message_that_no_replica_sends_ends_the_stream(message: LinkCalls) -> None:
    async with connected(Takes(20)) as (replica, _), raw_stream(replica) as stream:
        await stream.write(message)
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("metadata", [[b"odd"], [b"\xff", b"x"], [b"x", b"\xff"]])
async def test_malformed_metadata_is_the_failure_of_its_call_alone(
    metadata: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async with connected() as (replica, _), raw_stream(replica) as stream:
        await stream.write(calls([1], metadata=metadata))
        [answer] = (await stream.read()).answers
        assert answer.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        await stream.write(calls([2]))
        assert [it.response for it in (await stream.read()).answers] == [b"olleh"]
    assert not caplog.records
