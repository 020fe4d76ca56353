"""How much of a caller's messages the listener takes at once, before it knows how large they are."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from realtime_service.scheduling.calls_under_way import CallsUnderWay
from realtime_service.settings import ServiceSettings
from realtime_service.transport import known_methods, rpc_handlers, stream_turns
from realtime_service.transport.listener import UNREAD_BYTES
from realtime_service.transport.messages import MAX_MESSAGE_BYTES
from realtime_service.transport.rpc_handlers import Arrival, Context
from tests.load import wire
from tests.realtime_service.listeners import listening
from tests.realtime_service.receptions import Reception

SERVICE = "test.Reading"
PATH, STREAM = (f"/{SERVICE}/{method}" for method in ("Ask", "Converse"))
OK, LATE = grpc.StatusCode.OK.value[0], grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
#: Room for six messages, and for two of one address.
LIMITS = ServiceSettings(inflight_megabytes=2 * 6 * MAX_MESSAGE_BYTES / 1e6, inflight_caller_share=1 / 3)
FRAME_BYTES = 16_384
SETTINGS, PING, WINDOW_UPDATE, INITIAL_WINDOW = 4, 6, 8, 4
MARK = b"is it so"


async def ask(raw: bytes, context: Context) -> bytes:
    return raw


async def converse(incoming: AsyncIterator[bytes], context: Context, arrival: Arrival) -> None:
    async for raw in incoming:
        await context.write(raw)


HANDLERS = grpc.method_handlers_generic_handler(
    SERVICE, {"Ask": rpc_handlers.unary(ask), "Converse": rpc_handlers.Handlers(Reception()).bidi_stream(converse)}
)


class Caller:
    """A connection from an address. `invited`: calls for whose messages the listener has made room; `ended`: statuses
    by call; `window`: bytes that may come for each call that is not read."""

    def __init__(self, address: str, source: str, path: str = PATH) -> None:
        host, _, port = address.rpartition(":")
        self.wire = wire.Wire(address, path, 20_000)
        self.invited = set[int]()
        self.ended = dict[int, int]()
        self.window = 65_535
        self._connection = socket.create_connection((host, int(port)), timeout=20, source_address=(source, 0))
        self._connection.setblocking(False)
        self._unread = b""
        self._marked = False

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def begin_large(self) -> None:
        """Begin a call with a message of the largest size, and send one frame of it."""
        stream = self.wire.open()
        body = (b"\0" + struct.pack(">I", MAX_MESSAGE_BYTES)).ljust(FRAME_BYTES, b"a")
        self.wire.outgoing += len(body).to_bytes(3, "big") + b"\0\0" + struct.pack(">I", stream) + body

    async def exchange(self) -> None:
        """Send what is due, and take what has come."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._connection, self.wire.outgoing)
        self.wire.outgoing.clear()
        data = await asyncio.wait_for(loop.sock_recv(self._connection, 1 << 16), 20)
        assert data, "the listener has closed the connection"
        for stream, status in self.wire.receive(data):
            # A call that ends before its message has come is reset after its status.
            self.ended.setdefault(stream, status)
        for kind, stream, payload in self._frames(data):
            if kind == WINDOW_UPDATE and stream:
                self.invited.add(stream)
            elif kind == SETTINGS:
                told = dict(struct.iter_unpack(">HI", payload))
                self.window = told.get(INITIAL_WINDOW, self.window)
            elif kind == PING:
                self._marked |= payload == MARK

    async def catch_up(self) -> None:
        """Take everything that the listener has sent until now."""
        self._marked = False
        self.wire.outgoing += len(MARK).to_bytes(3, "big") + bytes((PING, 0)) + bytes(4) + MARK
        while not self._marked:
            await self.exchange()

    def _frames(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        self._unread += data
        while len(self._unread) >= 9 and len(self._unread) >= (end := 9 + int.from_bytes(self._unread[:3], "big")):
            yield self._unread[3], int.from_bytes(self._unread[5:9], "big"), self._unread[9:end]
            self._unread = self._unread[end:]


@pytest.mark.parametrize("path", [PATH, STREAM])
async def test_few_large_messages_of_an_address_are_taken_at_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_turns, "NEW_SECONDS", 60.0)
    async with listening(HANDLERS, settings=LIMITS) as address:
        with Caller(address, "127.0.0.5", path) as many, Caller(address, "127.0.0.6") as other:
            for _ in range(12):
                many.begin_large()
            while len(many.invited) < 2:
                await many.exchange()
            other.wire.call(wire.prepare(b"hello"))
            while not other.ended:
                await other.exchange()
            await many.catch_up()
    assert other.ended == {1: OK}
    assert many.invited == {1, 3}
    assert many.window == UNREAD_BYTES


async def test_calls_whose_messages_do_not_come_delay_others_of_their_address_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_methods, "READ_SECONDS", 60.0)
    monkeypatch.setattr(known_methods, "LOOK_SECONDS", 0.05)
    calls = CallsUnderWay()
    async with listening(HANDLERS, settings=LIMITS, calls=calls) as address:
        with Caller(address, "127.0.0.5") as silent, Caller(address, "127.0.0.6") as other:
            for _ in range(2):
                silent.wire.open()
            silent.wire.call(wire.prepare(b"hello"))
            await silent.catch_up()
            other.wire.call(wire.prepare(b"hello"))
            while not other.ended:
                await other.exchange()
            await silent.catch_up()
            assert (other.ended, silent.ended) == ({1: OK}, {})
            # Two that are read, and one that waits.
            assert calls.count == 3
            monkeypatch.setattr(known_methods, "READ_SECONDS", 0.5)
            while len(silent.ended) < 3:
                await silent.exchange()
    assert silent.ended == {1: LATE, 3: LATE, 5: OK}
    assert calls.count == 0
