"""A reception of calls that counts nothing, for tests whose subject is another."""

import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from realtime_service.identity import Identity
from realtime_service.transport.rpc_handlers import Arrival, Context
from realtime_service.transport.stream_turns import StreamReader, StreamTurns


async def anyone(context: Context) -> Identity:
    return Identity("addr:x", "addr:x")


class Reception:
    """`rpc_handlers.Reception`. `identify`: tells who calls."""

    def __init__(self, identify: Callable[[Context], Awaitable[Identity]] = anyone) -> None:
        self._identify = identify
        self._turns = StreamTurns(8, 2)

    async def arrive(self, context: Context) -> Arrival:
        return Arrival(await self._identify(context))

    def counted(self, arrival: Arrival) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def reader(self, context: Context) -> StreamReader:
        return self._turns.reader(context)

    async def decompressed(self, raw: bytes, arrival: Arrival) -> bytes:
        return raw
