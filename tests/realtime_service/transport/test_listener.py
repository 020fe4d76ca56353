"""The limits of a listener on real connections: bursts on one of them, and connections that grow old."""

import asyncio
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager

import grpc
import grpc.aio

from realtime_service.cluster.peers import STREAM_BYTES, Peer
from realtime_service.rpc.retryable import Failure, failure_of
from realtime_service.settings import ServiceSettings
from realtime_service.transport import rpc_handlers
from realtime_service.transport.peer_stream_server import PeerStreams
from realtime_service.transport.rpc_handlers import Context
from realtime_service.transport.streaming import OpenStreams
from tests.load import wire
from tests.realtime_service.cluster.directory import SCORE, until
from tests.realtime_service.cluster.stub import FORWARDED, Stub, Takes
from tests.realtime_service.cluster.trusts import trusting
from tests.realtime_service.listeners import listening


def replica(settings: ServiceSettings, stub: Stub, longest_seconds: float = 300.0) -> AbstractAsyncContextManager[str]:
    peer_streams = PeerStreams([stub], FORWARDED, OpenStreams(), trusting(), longest_seconds)
    return listening(peer_streams.handlers(), stub, settings=settings)


def pipelined(address: str, calls: int, sent: threading.Event) -> Counter[int]:
    """Make so many calls at once on one connection; returns how many ended with which status."""
    host, _, port = address.rpartition(":")
    connected, statuses = wire.Wire(address, SCORE, 20_000), Counter[int]()
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        for _ in range(calls):
            connected.call(wire.prepare(b"hello"))
        while statuses.total() < calls:
            connection.sendall(connected.outgoing)
            connected.outgoing.clear()
            sent.set()
            statuses.update(status for _, status in connected.receive(connection.recv(1 << 20)))
    return statuses


async def test_a_burst_is_answered_or_refused_and_no_call_of_it_cancelled() -> None:
    """While the event loop accepts nothing, more calls come than gRPC keeps by default."""
    connections, each = 12, 500
    async with replica(ServiceSettings(), Stub()) as address:
        sent = [threading.Event() for _ in range(connections)]
        with ThreadPoolExecutor(connections) as threads:
            bursts = [threads.submit(pipelined, address, each, event) for event in sent]
            for event in sent:
                event.wait(20)
            time.sleep(1.0)  # noqa: ASYNC251 - the loop is to stand still
            statuses = sum(await asyncio.gather(*map(asyncio.wrap_future, bursts)), Counter[int]())
    assert set(statuses) <= {grpc.StatusCode.OK.value[0], grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]}
    assert statuses.total() == connections * each


async def test_more_calls_than_the_bound_are_refused() -> None:
    async with replica(ServiceSettings(max_calls=4), Stub(Takes(0.5))) as address:
        statuses = await asyncio.to_thread(pipelined, address, 40, threading.Event())
    assert statuses == {grpc.StatusCode.OK.value[0]: 4, grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]: 36}


async def test_ended_calls_keep_no_stream_of_their_connection() -> None:
    """Of several methods: each had places for 64 calls, which kept the last call until another came."""

    async def echo(raw: bytes, context: Context) -> bytes:
        return raw

    methods = ("One", "Two", "Three")
    handlers = grpc.method_handlers_generic_handler("test.Any", {it: rpc_handlers.unary(echo) for it in methods})
    async with (
        listening(handlers, settings=ServiceSettings(max_streams=80)) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        for method in methods:
            call = channel.unary_unary(f"/test.Any/{method}")  # type: ignore[call-arg]
            assert [await call(b"hello") for _ in range(70)] == [b"hello"] * 70


async def test_a_short_call_whose_caller_has_left_sends_no_answer() -> None:
    """gRPC loses half a kilobyte with each one that it cannot send. Some may be late, because the machine is busy."""
    started, answered, calls = asyncio.Event(), list[bool](), 40

    async def ask(raw: bytes, context: Context) -> bytes:
        started.set()
        try:
            await asyncio.sleep(0.015)
        except asyncio.CancelledError:
            answered.append(False)
            raise
        answered.append(True)
        return raw

    handlers = grpc.method_handlers_generic_handler("test.Any", {"Ask": rpc_handlers.unary(ask)})
    async with listening(handlers) as address, grpc.aio.insecure_channel(address) as channel:
        for _ in range(calls):
            started.clear()
            call = channel.unary_unary("/test.Any/Ask")(b"hello")  # type: ignore[call-arg]
            await asyncio.wait_for(started.wait(), 20)
            call.cancel()
        await until(lambda: len(answered) == calls)
    assert sum(answered) < calls / 2


async def test_calls_survive_the_age_of_their_connection() -> None:
    """Of replicas, on a stream of their own and beside it, and of clients."""
    aged = ServiceSettings(connection_age_seconds=0.3, connection_grace_seconds=1.0)
    async with replica(aged, Stub(Takes(0.05)), longest_seconds=0.5) as address:
        peer, until = Peer(address, trusting()), time.monotonic() + 4.0

        async def ask(raw: bytes) -> bytes:
            try:
                return await peer.call(SCORE, raw, 20.0, ())
            except grpc.aio.AioRpcError as error:
                # The connection ended while the call was on its way: the forwarder makes such a call once more.
                if failure_of(error.code(), error.details() or "", None) not in {Failure.NOT_SENT, Failure.LOST}:
                    raise
                return await peer.call(SCORE, raw, 20.0, ())

        async with grpc.aio.insecure_channel(address) as channel:
            client = channel.unary_unary(SCORE)  # type: ignore[call-arg]
            looks = set[bool | None]()
            while time.monotonic() < until:
                raws = (b"hello", b"a" * (STREAM_BYTES + 1))
                answers = await asyncio.gather(*map(ask, raws), client(b"hello"))
                assert answers == [*(raw[::-1] for raw in raws), b"olleh"]
                looks.add(peer.reachable)
        await peer.close()
    assert False not in looks


async def test_a_path_that_is_no_utf_8_ends_its_own_call_only() -> None:
    """gRPC's accept loop would decode it, and end. The others are of no service, and of no method."""
    calls = {b"/scoring.v1.ScoringService/Sc\xff": 12, b"\xff": 12, b"/a/b": 12, b"/scoring.v1.ScoringService/": 12}

    def status(address: str, path: bytes) -> int:
        host, _, port = address.rpartition(":")
        connected, ended = wire.Wire(address, path, 20_000), list[tuple[int, int]]()
        connected.call(wire.prepare(b"hello"))
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(bytes(connected.outgoing))
            while not ended:
                received = connection.recv(1 << 16)
                assert received, "the listener has closed the connection"
                ended += connected.receive(received)
        return ended[0][1]

    async with replica(ServiceSettings(), Stub()) as address, grpc.aio.insecure_channel(address) as channel:
        client = channel.unary_unary(SCORE)  # type: ignore[call-arg]
        assert await client(b"hello") == b"olleh"
        assert {path: await asyncio.to_thread(status, address, path) for path in calls} == calls
        # On the same connection, and on a new one.
        assert await client(b"hello") == b"olleh"
        assert await asyncio.to_thread(status, address, SCORE.encode()) == grpc.StatusCode.OK.value[0]
