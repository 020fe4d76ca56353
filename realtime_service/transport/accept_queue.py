"""Accepted calls that have not been decided: each knows when it came, and a burst goes on in its order, few at once.

gRPC's own loop takes one call of a method at a time, over several turns of the event loop. In a burst calls wait for it
where nobody sees them. Here many are taken in one turn, and stamped with the time; the error is one turn. All handlers
of a burst would take their steps side by side, and the first would reach the device when the last has been read. So a
few calls are read in each turn (`AcceptQueue`), fewer handlers begin (`Turns`), and turns stay short. Addresses take
turns, so that a flood from one delays no call of another.
"""

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Call = TypeVar("Call")

#: When the call came that a handler of a single request runs for, in monotonic seconds; unknown for streams, whose
#: requests come later than their call.
ARRIVED: contextvars.ContextVar[float | None] = contextvars.ContextVar("ARRIVED", default=None)
#: Calls that are read in one turn of the event loop, and handlers that begin. More would take their steps side by side.
_STARTS, _HANDLERS = 4, 2


class AcceptQueue(Generic[Call]):
    """`start`: begins to answer a call, in a context of its own where ARRIVED is set.

    Calls of one address start in their order.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, start: Callable[[Call], None]) -> None:
        self._loop = loop
        self._start = start
        # By address, the next one first. None of them is empty.
        self._waiting: dict[str, deque[tuple[Call, float]]] = {}

    def put(self, call: Call, address: str) -> None:
        if not self._waiting:
            self._loop.call_soon(self._turn)
        self._waiting.setdefault(address, deque()).append((call, time.monotonic()))

    def _turn(self) -> None:
        for _ in range(_STARTS):
            if self._waiting:
                self._start_next()
        if self._waiting:
            self._loop.call_soon(self._turn)

    def _start_next(self) -> None:
        address = next(iter(self._waiting))
        calls = self._waiting.pop(address)
        call, arrived = calls.popleft()
        if calls:
            self._waiting[address] = calls
        context = contextvars.copy_context()
        context.run(ARRIVED.set, arrived)
        context.run(self._start, call)


class Turns:
    """Calls that were read, and whose handlers have not begun."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting = deque[asyncio.Future[None]]()

    def __len__(self) -> int:
        return len(self._waiting)

    async def next(self) -> None:
        """Wait for the turn of the caller."""
        if not self._waiting:
            self._loop.call_soon(self._turn)
        turn = self._loop.create_future()
        self._waiting.append(turn)
        await turn

    def _turn(self) -> None:
        for _ in range(min(_HANDLERS, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.cancelled():
                turn.set_result(None)
        if self._waiting:
            self._loop.call_soon(self._turn)
