"""Calls that were accepted and are not decided yet: a burst goes on in its order, few of it at once.

gRPC's own loop takes one call of a method at a time, over several turns of the event loop. In a burst calls wait for it
unseen. The listener takes many in one turn, and stamps them with the time; the error is one turn. All handlers of a
burst would take their steps side by side, and the first would reach the device when the last has been read. So a few
calls are read in each turn, fewer handlers begin, and turns stay short.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

#: When the call came that a handler of a single request runs for, in monotonic seconds; unknown for streams, whose
#: requests come later than their call.
ARRIVED: contextvars.ContextVar[float | None] = contextvars.ContextVar("ARRIVED", default=None)


class AcceptQueue(Generic[Item]):
    """Passes items on, so many `at_once` in a turn of the event loop. Those of one address go in their order, and
    addresses take turns, so that a flood from one delays no call of another."""

    def __init__(self, loop: asyncio.AbstractEventLoop, at_once: int, passed: Callable[[Item], None]) -> None:
        self._loop = loop
        self._at_once = at_once
        self._passed = passed
        # By address, the next one first. None of them is empty.
        self._waiting: dict[str, deque[Item]] = {}

    def put(self, item: Item, address: str) -> None:
        if not self._waiting:
            self._loop.call_soon(self._turn)
        self._waiting.setdefault(address, deque()).append(item)

    def waiting(self, address: str) -> int:
        """Items of an address."""
        return len(self._waiting.get(address, ()))

    def _turn(self) -> None:
        for _ in range(self._at_once):
            if not self._waiting:
                return
            address = next(iter(self._waiting))
            items = self._waiting.pop(address)
            item = items.popleft()
            if items:
                self._waiting[address] = items
            self._passed(item)
        if self._waiting:
            self._loop.call_soon(self._turn)
