"""Accepted calls that have not started: each knows when it came, and a burst of them starts in its order, few at once.

gRPC's own loop takes one call of a method at a time, over several turns of the event loop. In a burst calls wait for it
where nobody sees them. Here many are taken in one turn, and stamped with the time; the error is one turn. All handlers
of a burst would take their steps side by side, and the first would reach the device when the last has been read. So a
few start in each turn, and turns stay short. Addresses take turns, so that a flood from one delays no call of another.
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
#: Calls that start in one turn of the event loop. More would take their steps side by side.
_STARTS = 2


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
