"""Addresses take turns with the messages of their streams, as they do with calls.

gRPC takes a message whole once it is read, however large it is, and `listener.UNREAD_BYTES` of it before that. So few
large messages are read at once, and few messages go on to be answered in each turn of the event loop.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc.aio

from realtime_service.identity import peer_key
from realtime_service.transport.accept_queue import BYTES_PER_SECOND, AcceptQueue, ReadQueue
from realtime_service.transport.messages import SMALL_BYTES

#: Messages that go on, and reads of large ones that begin, in one turn.
_AT_ONCE = 2
#: How long a stream keeps its place while no message comes: it may be idle. A new one, and one that sent a large one.
NEW_SECONDS, PATIENCE_SECONDS = 0.01, 0.1

_EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # not in its stubs
_Waiting: TypeAlias = "asyncio.Future[None]"


class StreamTurns:
    """Of all streams of a process. `places`: for messages that may be large and are being read; `places_of_address`: as
    in `ReadQueue`."""

    def __init__(self, places: int, places_of_address: int) -> None:
        self._places = (places, places_of_address)

    def reader(self, context: Any) -> "StreamReader":
        """Of the stream of this context."""
        return StreamReader(self, context.read, peer_key(context.peer()))

    @functools.cached_property
    def reading(self) -> "ReadQueue[_Place]":
        return ReadQueue(asyncio.get_running_loop(), _AT_ONCE, _Place.grant, *self._places)

    @functools.cached_property
    def going_on(self) -> AcceptQueue[_Waiting]:
        return AcceptQueue(asyncio.get_running_loop(), _AT_ONCE, _go_on)


class StreamReader:
    def __init__(self, turns: StreamTurns, read: Callable[[], Awaitable[Any]], address: str) -> None:
        self._turns = turns
        self._read = read
        self._address = address
        #: For how long a place is kept for the next message, where it may be large.
        self._patience = NEW_SECONDS

    async def next(self) -> Any:
        """The next message, or gRPC's EOF, once its address has its turn. A large message that has come without a place
        waits for one."""
        raw, in_place = await self._read_in_place() if self._patience else (await self._read(), False)
        if raw is not _EOF:
            large = len(raw) > SMALL_BYTES
            if large and not in_place:
                await self._take_place(len(raw))
            self._patience = PATIENCE_SECONDS if large else 0.0
            if not self._turns.going_on.passes():
                begin = asyncio.get_running_loop().create_future()
                self._turns.going_on.put(begin, self._address)
                await begin
        return raw

    async def _read_in_place(self) -> tuple[Any, bool]:
        """The next message, and whether it has a place."""
        with _Place(self._turns.reading, self._address) as place:
            await place.granted
            place.give_back_after(self._patience)
            raw = await self._read()
            return raw, place.give_back_after(0.0 if raw is _EOF else len(raw) / BYTES_PER_SECOND)

    async def _take_place(self, size: int) -> None:
        with _Place(self._turns.reading, self._address) as place:
            await place.granted
            place.give_back_after(size / BYTES_PER_SECOND)


class _Place:
    """A place for a message that is read, waited for from the start. A reader that fails gives it back at once, or when
    it gets it."""

    def __init__(self, queue: "ReadQueue[_Place]", address: str) -> None:
        self.granted: _Waiting = asyncio.get_running_loop().create_future()
        self._queue = queue
        self._address = address
        self._timer: asyncio.TimerHandle | None = None
        self._held = self._given_back = False
        queue.put(self, address)

    def grant(self) -> None:
        self._held = True
        if self._given_back:
            self._queue.ended(self._address)
        else:
            _go_on(self.granted)

    def __enter__(self) -> "_Place":
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure:
            self._give_back()

    def give_back_after(self, seconds: float) -> bool:
        """In so many seconds from now, instead of at an earlier call's time. False where that time is over."""
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._give_back)
        return not self._given_back

    def _give_back(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._held and not self._given_back:
            self._queue.ended(self._address)
        self._given_back = True


def _go_on(waiting: _Waiting) -> None:
    if not waiting.cancelled():
        waiting.set_result(None)
