"""Calls that were accepted and are not decided yet: a burst goes on in its order, few of it at once.

gRPC's own loop takes one call of a method at a time, over several turns of the event loop. In a burst calls wait for it
unseen. The listener takes many in one turn, and stamps them with the time; the error is one turn. All handlers of a
burst would take their steps side by side, and the first would reach the device when the last has been read. So a few
calls are read in each turn, fewer handlers begin, and turns stay short.

Where calls come faster than they can even be refused, each would be read when most of its time is over, and hardly any
answered: at five times the capacity of two cores, 15 % of it. So after a call that was refused or expired while devices
have hardly any work, the next but one that is read is the newest, which has all of its time; the oldest go on as well.
Calls whose deadline has passed end unread.
"""

import asyncio
import contextvars
from collections import Counter, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from realtime_service.transport.messages import SMALL_BYTES

Item = TypeVar("Item")

#: A place that a large message has used is kept so long that the places of an address take so much each, on average:
#: more than can be tokenised, less than fills a core.
BYTES_PER_SECOND = 16e6

#: Items that are looked at, as to whether they are over, with each that is passed on.
_LOOKED_AT = 4

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
        # By address. None of them is empty.
        self._waiting: dict[str, deque[Item]] = {}
        # Addresses whose items may be passed on, the next one first.
        self._ready: dict[str, None] = {}
        self._size = 0
        self._turn_is_due = False
        # Items that went on in this turn without waiting.
        self._unasked = 0

    def __len__(self) -> int:
        return self._size

    def put(self, item: Item, address: str) -> None:
        self._waiting.setdefault(address, deque()).append(item)
        self._size += 1
        self._offer(address)

    def hand(self, item: Item, address: str) -> None:
        """As `put`; an item for which nothing is to wait goes on in this turn."""
        if self._has_place(address) and self.passes():
            self._pass(item, address)
        else:
            self.put(item, address)

    def passes(self) -> bool:
        """Whether an item may go on without waiting: no other waits, and few have gone on in this turn."""
        if self._size or self._unasked >= self._at_once:
            return False
        self._unasked += 1
        self._expect_turn()
        return True

    def waiting(self, address: str) -> int:
        """Items of an address."""
        return len(self._waiting.get(address, ()))

    def _offer(self, address: str) -> None:
        """Let an address take turns, if it has an item that may be passed on."""
        if address in self._ready or address not in self._waiting or not self._has_place(address):
            return
        self._ready[address] = None
        self._expect_turn()

    def _expect_turn(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def _has_place(self, address: str) -> bool:
        return True

    def _turn(self) -> None:
        self._unasked = 0
        try:
            for _ in range(self._at_once):
                if self._ready:
                    self._pass_next()
        finally:
            self._turn_is_due = bool(self._ready)
            if self._turn_is_due:
                self._loop.call_soon(self._turn)

    def _pass_next(self) -> None:
        address = next(iter(self._ready))
        del self._ready[address]
        # Others may have taken the last places since this address was offered.
        if not self._has_place(address):
            return
        items = self._waiting[address]
        item = self._take(items, address)
        if not items:
            del self._waiting[address]
        self._size -= 1
        self._pass(item, address)
        self._offer(address)

    def _take(self, items: deque[Item], address: str) -> Item:
        return items.popleft()

    def _pass(self, item: Item, address: str) -> None:
        self._passed(item)


class ReadQueue(AcceptQueue[Item]):
    """As `AcceptQueue`, for calls whose messages are read next. How large a message is shows once it is read, so few
    are read at once: each that was passed on has a place until it has `ended`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        at_once: int,
        passed: Callable[[Item], None],
        places: int,
        places_of_address: int,
        over: Callable[[Item], bool] = lambda item: False,
    ) -> None:
        """While all `places` are taken, an address has one: calls that send no message cannot lock out others. `over`:
        whether an item that others wait behind need not be passed on any more; it has been ended then."""
        super().__init__(loop, at_once, passed)
        self._over = over
        self._places = places
        self._places_of_address = places_of_address
        self._taken: Counter[str] = Counter()
        self._all_taken = 0
        # By address: when the last place that a large message keeps becomes free, in the loop's seconds.
        self._kept_until: dict[str, float] = {}
        # Addresses whose newest item is to be passed on, after an oldest: whether that was. Each has items that wait.
        self._newest: dict[str, bool] = {}

    def prefer_newest(self, address: str) -> None:
        """Pass on the newest item of an address after its oldest: the oldest come too late for what has nothing else to
        do. At most every second item is the newest, so that the oldest wait for twice as many at most."""
        if address in self._waiting:
            self._newest.setdefault(address, False)

    def ended(self, address: str, size: int = 0) -> None:
        """`size`: of its message, in bytes: a large one keeps its place for a time. The places of an address become
        free one after the other, because two that become free together let two large messages in together."""
        if size > SMALL_BYTES:
            seconds = size / (self._places_of_address * BYTES_PER_SECOND)
            free = max(self._loop.time(), self._kept_until.get(address, 0.0)) + seconds
            self._kept_until[address] = free
            self._loop.call_at(free, self.ended, address)
            return
        self._all_taken -= 1
        self._taken[address] -= 1
        if not self._taken[address]:
            del self._taken[address]
            self._kept_until.pop(address, None)
        self._offer(address)

    def _has_place(self, address: str) -> bool:
        most = self._places_of_address if self._all_taken < self._places else 1
        return self._taken[address] < most

    def _take(self, items: deque[Item], address: str) -> Item:
        for _ in range(min(_LOOKED_AT, len(items) - 1)):
            if not self._over(items[0]):
                break
            items.popleft()
            self._size -= 1
        after_oldest = self._newest.pop(address, None)
        if after_oldest:
            return items.pop()
        if after_oldest is not None and len(items) > 1:
            self._newest[address] = True
        return items.popleft()

    def _pass(self, item: Item, address: str) -> None:
        self._all_taken += 1
        self._taken[address] += 1
        super()._pass(item, address)
