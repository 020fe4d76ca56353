"""python -m tests.attack.disturbers NAME PLACE: attacks, or makes valid calls. PLACE: `Place` in JSON.

Each is a process of its own, at the priority of everybody.
"""

import asyncio
import gzip
import itertools
import json
import select
import socket
import sys
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field, replace

import grpc
import grpc.aio

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.link_pb2 import LinkCall, LinkCalls
from tests.attack import hostile
from tests.load.wire import Wire, prepare

#: Statuses that no input may cause: of a failure of the server, of a call that its caller did not cancel, and of one
#: that no handler saw.
WRONG = (
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.UNAVAILABLE,
)
PEER_STREAM = "/scoring.v1.Replica/Link"
#: Longest wait for the end of a call.
_PATIENCE_SECONDS = 20.0
_FUZZERS = 32
_LEAST_SECONDS = 1.0
_RESETS_PER_SECOND = 20_000
#: A request of one short text.
_SHORT_BYTES = 40
_CHUNK = 1 << 16


@dataclass
class Sent:
    """Counts of one disturber: messages, streams or connections; their bytes as they travel; the connections that it
    keeps for calls; calls of one request that got no answer; wrong ends by status; seconds that it took."""

    messages: int = 0
    bytes: int = 0
    connections: int = 1
    failed: int = 0
    seconds: float = 0.0
    wrong: Counter[str] = field(default_factory=Counter)

    def document(self) -> str:
        return json.dumps(
            {
                "sent": self.messages,
                "bytes": self.bytes,
                "connections": self.connections,
                "failed": self.failed,
                "seconds": self.seconds,
                "wrong": sorted(self.wrong.items()),
            }
        )


@dataclass(frozen=True)
class Place:
    """`until`: monotonic seconds; `inputs`: messages that a fuzzer sends at least, also after that; `quota`: texts a
    second of one caller. `bytes_per_second`, `connections`: those of an attack, for the valid calls beside it."""

    address: str
    metrics: str
    until: float
    inputs: int
    quota: int
    bytes_per_second: float = 0.0
    connections: int = 1

    @property
    def over(self) -> bool:
        return time.monotonic() > self.until


async def valid(place: Place, sent: Sent) -> None:
    """Calls within the quota, at an attack's rate of bytes, over as many connections."""
    rate = min(0.9 * place.quota, max(1.0, place.bytes_per_second / _SHORT_BYTES))
    raw = hostile.padded(round(place.bytes_per_second / rate))
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as calls:
        sent.connections = place.connections
        channels = itertools.cycle([await stack.enter_async_context(it) for it in _channels(place, sent.connections)])
        began = time.monotonic()
        for number in itertools.count():
            if place.over:
                return
            await asyncio.sleep(began + number / rate - time.monotonic())
            calls.create_task(_call(next(channels), hostile.SCORE, raw, sent, len(raw)))


async def malformed(place: Place, sent: Sent) -> None:
    """A message a second whose invalid field is the last of 1.4 million."""
    messages = itertools.cycle([(method, raw, len(gzip.compress(raw, 6))) for method, raw in hostile.malformed()])
    async with _zipping(place) as channel:
        while not place.over:
            method, raw, travelled = next(messages)
            await _call(channel, method, raw, sent, travelled)
            await asyncio.sleep(1.0)


async def long_texts(place: Place, sent: Sent) -> None:
    """Forty requests of the longest texts at once, every five seconds."""
    method, raw = hostile.long_texts()
    travelled = len(gzip.compress(raw, 6))
    async with _zipping(place) as channel:
        while not place.over:
            await asyncio.gather(*(_call(channel, method, raw, sent, travelled) for _ in range(40)))
            await asyncio.sleep(5.0)


async def large_messages(place: Place, sent: Sent) -> None:
    """The same requests, not compressed, over four connections."""
    method, raw = hostile.long_texts()
    sent.connections = 4
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(it) for it in _channels(place, sent.connections)]
        while not place.over:
            calls = zip(range(40), itertools.cycle(opened), strict=False)
            await asyncio.gather(*(_call(channel, method, raw, sent, len(raw)) for _, channel in calls))
            await asyncio.sleep(5.0)


async def peer_streams(place: Place, sent: Sent) -> None:
    """Streams as replicas open them, each with a message of 90,000 calls whose answers stay unread, once a second."""
    call = LinkCall(number=1, method="/scoring.v1.ScoringService/Describe")
    raw = LinkCalls(calls=[call] * 90_000).SerializeToString()
    async with grpc.aio.insecure_channel(place.address) as channel:
        kept = []
        while not place.over:
            stream = channel.stream_stream(PEER_STREAM)()
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.TimeoutError):
                await asyncio.wait_for(stream.write(raw), 2.0)
            sent.messages, sent.bytes = sent.messages + 1, sent.bytes + len(raw)
            kept.append(stream)
            await asyncio.sleep(1.0)


async def half_read(place: Place, sent: Sent) -> None:
    """A hundred streams of each kind, on four connections, that send requests of 0.4 MB and read no answer."""
    scored, submitted, inferred = hostile.long_requests()
    kinds = itertools.cycle(
        (
            ("/scoring.v1.ScoringService/ScoreStream", scored),
            ("/scoring.v1.ScoringService/SubmitStream", submitted),
            ("/inference.GRPCInferenceService/ModelStreamInfer", inferred),
        )
    )

    async def stream(channel: grpc.aio.Channel, method: str, raw: bytes) -> None:
        call = channel.stream_stream(method)()
        # It ends with its replica, or in the middle of a message.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            async with asyncio.timeout(max(0.0, place.until - time.monotonic())):
                while True:
                    # Begun: a slow replica may read no message to its end.
                    sent.messages += 1
                    await call.write(raw)
                    sent.bytes += len(raw)

    sent.connections = 4
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(it) for it in _channels(place, sent.connections)]
        channels = itertools.cycle(opened)
        await asyncio.gather(*(stream(next(channels), *next(kinds)) for _ in range(300)))


async def urgent_flood(place: Place, sent: Sent) -> None:
    """64 calls in flight, of the highest priority, for the latency lane, each by a caller of another name."""
    raw = scoring_pb2.ScoreRequest(
        texts=["where is my card"], priority=scoring_pb2.REAL_TIME, timeout_ms=99
    ).SerializeToString()
    numbers = itertools.count()

    async def caller(channel: grpc.aio.Channel) -> None:
        while not place.over:
            metadata = (("x-caller-id", f"caller-{next(numbers)}"), ("x-tandem-lane", "latency"))
            await _call(channel, hostile.SCORE, raw, sent, len(raw), metadata)

    async with grpc.aio.insecure_channel(place.address) as channel:
        await asyncio.gather(*(caller(channel) for _ in range(64)))


async def uniform(place: Place, sent: Sent) -> None:
    """Valid messages with changed bytes."""
    await _fuzz(place, sent, place.inputs, hostile.drawn(hostile.uniform, seed=1), grpc.Compression.NoCompression)


async def structured(place: Place, sent: Sent) -> None:
    """Messages that are built to cost, in turn as they are and compressed."""
    messages, compressions = (
        hostile.drawn(hostile.structured, seed=2),
        (grpc.Compression.NoCompression, grpc.Compression.Gzip),
    )
    await asyncio.gather(*(_fuzz(place, sent, place.inputs, messages, it) for it in compressions))


async def resets(place: Place, sent: Sent) -> None:
    """One connection on which 20,000 calls a second are begun and cancelled at once."""
    await asyncio.to_thread(_resets, place, sent)


async def pipelined(place: Place, sent: Sent) -> None:
    """6,553 calls at once on one connection, every ten seconds."""
    await asyncio.to_thread(_pipelined, place, sent)


async def idle(place: Place, sent: Sent) -> None:
    """5,000 streams and 500 connections on which nothing is sent, and 300 half-sent requests for metrics."""
    await asyncio.to_thread(_idle, place, sent)


def _resets(place: Place, sent: Sent) -> None:
    while not place.over:
        with suppress(ConnectionError), _connected(place.address) as connection:
            wire, began = Wire("attack", hostile.SCORE, 1_000), time.monotonic()
            for number in itertools.count():
                if place.over:
                    return
                for _ in range(100):
                    wire.reset(wire.open())
                sent.messages += 100
                _write(connection, wire, sent)
                time.sleep(max(0.0, began + 100 * (number + 1) / _RESETS_PER_SECOND - time.monotonic()))


def _pipelined(place: Place, sent: Sent) -> None:
    message = prepare(scoring_pb2.ScoreRequest(texts=["where is my card"]).SerializeToString())
    while not place.over:
        with suppress(ConnectionError), _connected(place.address) as connection:
            wire, began = Wire("attack", hostile.SCORE, 10_000), time.monotonic()
            for _ in range(6_553):
                wire.call(message)
            sent.messages += 6_553
            while not place.over and time.monotonic() < began + 10.0:
                _write(connection, wire, sent)
                time.sleep(0.01)


def _idle(place: Place, sent: Sent) -> None:
    with ExitStack() as stack:
        connection = stack.enter_context(_connected(place.address))
        wire = Wire("attack", "/scoring.v1.ScoringService/ScoreStream", 600_000)
        for _ in range(5_000):
            wire.open()
        connections = [stack.enter_context(_connecting(place.address)) for _ in range(500)]
        sent.connections += len(connections)
        halves = [stack.enter_context(_connecting(place.metrics)) for _ in range(300)]
        sent.messages = 5_000 + len(connections)
        while not place.over:
            with suppress(ConnectionError):
                _write(connection, wire, sent)
            halves = [it for it in halves if not _asks_by_half(it, sent)]
            time.sleep(0.05)


def _asks_by_half(connection: socket.socket, sent: Sent) -> bool:
    """Send the beginning of a request once there is a connection. Whether that is over, one way or another."""
    if not select.select([], [connection], [], 0)[1]:
        return False
    with suppress(OSError):
        connection.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        sent.messages += 1
    return True


def _write(connection: socket.socket, wire: Wire, sent: Sent) -> None:
    """Write what is due and read what came. Raises: ConnectionError where the service has hung up."""
    with suppress(BlockingIOError):
        written = connection.send(wire.outgoing)
        sent.bytes += written
        del wire.outgoing[:written]
    with suppress(BlockingIOError):
        data = connection.recv(_CHUNK)
        if not data:
            raise ConnectionError("the service has closed the connection")
        wire.receive(data)
    # A writer that outruns the service would only fill its own memory.
    while len(wire.outgoing) > _CHUNK:
        time.sleep(0.001)
        with suppress(BlockingIOError):
            written = connection.send(wire.outgoing)
            sent.bytes += written
            del wire.outgoing[:written]


def _connecting(address: str) -> socket.socket:
    """A connection that is not waited for: the service may take it late, or never."""
    host, _, port = address.rpartition(":")
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex((host, int(port)))
    return made


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    made = socket.create_connection((host, int(port)), timeout=10)
    made.setblocking(False)
    return made


def _channels(place: Place, connections: int) -> list[grpc.aio.Channel]:
    """Each with a connection of its own."""
    own = (("grpc.use_local_subchannel_pool", 1),)
    return [grpc.aio.insecure_channel(place.address, options=own) for _ in range(connections)]


def _zipping(place: Place) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(place.address, compression=grpc.Compression.Gzip)


async def _fuzz(
    place: Place, sent: Sent, least: int, messages: Iterator[hostile.Unary], compression: grpc.Compression
) -> None:
    async def caller(channel: grpc.aio.Channel) -> None:
        while not place.over or sent.messages < least:
            method, raw = next(messages)
            travelled = len(raw) if compression is grpc.Compression.NoCompression else len(zlib.compress(raw, 1))
            await _call(channel, method, raw, sent, travelled)

    async with grpc.aio.insecure_channel(place.address, compression=compression) as channel:
        await asyncio.gather(*(caller(channel) for _ in range(_FUZZERS)))


async def _call(
    channel: grpc.aio.Channel,
    method: str,
    raw: bytes,
    sent: Sent,
    travelled: int,
    metadata: tuple[tuple[str, str], ...] = (),
) -> None:
    """`travelled`: the size of the message on the wire, in bytes."""
    sent.messages, sent.bytes = sent.messages + 1, sent.bytes + travelled
    try:
        await channel.unary_unary(method)(raw, timeout=_PATIENCE_SECONDS, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        sent.failed += 1
        if error.code() in WRONG:
            sent.wrong[f"{error.code().name}: {method}: {error.details()}"] += 1


#: The name of the valid calls, with which an attack is compared.
VALID = valid.__name__
Disturber = Callable[[Place, Sent], Awaitable[None]]
DISTURBERS: Mapping[str, Disturber] = {
    it.__name__: it
    for it in (
        malformed,
        long_texts,
        large_messages,
        peer_streams,
        resets,
        pipelined,
        idle,
        half_read,
        urgent_flood,
        uniform,
        structured,
    )
}


def main(name: str, place: str) -> None:
    sent, disturber, began = Sent(), valid if name == VALID else DISTURBERS[name], time.monotonic()
    given = Place(**json.loads(place))
    # A busy machine may start this process so late that nothing would be sent.
    asyncio.run(disturber(replace(given, until=max(given.until, began + _LEAST_SECONDS)), sent))
    sent.seconds = time.monotonic() - began
    sys.stdout.write(sent.document() + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
