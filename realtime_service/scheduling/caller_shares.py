"""Fair queueing by caller inside a lane: a caller that floods a lane does not delay the others.

Each caller with queued tasks has a virtual time, the device time that it was served. A caller that is ahead of the
least served one is beyond its share: its tasks go behind those of callers within theirs, REAL_TIME or not. So a flood
delays another caller by one batch at most. A caller that comes back starts with the least served one that is queued, or
where it stopped if that is later: to pause earns nothing. With one caller nothing is compared.
"""

from collections.abc import Set
from dataclasses import dataclass

#: Callers without queued tasks that are remembered, beside those with some.
_REMEMBERED = 64

_NONE: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Caller:
    """`served`: virtual time; `size`: queued tasks; `backlog`: their device time, and of the real-time ones."""

    served: float
    size: int = 0
    backlog: float = 0.0
    real_time_backlog: float = 0.0


class CallerShares:
    """The callers of one lane. Costs are seconds of device time."""

    def __init__(self) -> None:
        self._callers: dict[str, _Caller] = {}
        self._queued: dict[str, _Caller] = {}
        # The virtual time of the least served caller, when it was looked at last; it never falls.
        self._floor = 0.0

    @property
    def contended(self) -> bool:
        """Whether several callers have queued tasks."""
        return len(self._queued) > 1

    def only(self, caller: str) -> bool:
        """Whether no other caller has queued tasks."""
        return not self._queued.keys() - {caller}

    def entered(self, caller: str, cost: float, real_time: bool) -> None:
        """A task was queued."""
        found = self._queued.get(caller) or self._started(caller)
        found.size += 1
        found.backlog += cost
        found.real_time_backlog += cost if real_time else 0.0

    def left(self, caller: str, cost: float, real_time: bool) -> None:
        """A task is queued no longer."""
        found = self._queued[caller]
        found.size -= 1
        found.backlog -= cost
        found.real_time_backlog -= cost if real_time else 0.0
        if not found.size:
            # Rounding errors add up.
            found.backlog = found.real_time_backlog = 0.0
            del self._queued[caller]
        if not self._queued:
            # Without a queue nothing was contended: all start equal.
            self._callers.clear()
            self._floor = 0.0

    def charge(self, caller: str, cost: float) -> None:
        """A queued task is about to be served."""
        self._queued[caller].served += cost

    def beyond(self) -> Set[str]:
        """Callers with queued tasks that are beyond their share."""
        if not self.contended:
            return _NONE
        least = self._least()
        return {caller for caller, it in self._queued.items() if it.served > least}

    def has_room(self, caller: str, tasks: int, lane_holds: int) -> bool:
        """Whether a caller may queue more in a lane that others have filled: up to its part of what the lane holds. All
        callers together then queue at most 1 + ½ + ⅓ + … times that."""
        others = len(self._queued.keys() - {caller})
        own = self._queued[caller].size if caller in self._queued else 0
        return others > 0 and own + tasks <= lane_holds / (others + 1)

    def ahead(self, caller: str | None, seconds: float, real_time: bool) -> float:
        """Seconds of queued work that would be served before a request of `seconds` has been. The order is that of
        `beyond`: each other caller is served until its virtual time is that of this one at the end of the request.
        `caller`: None for one that has never called."""
        own = (caller is not None and self._queued.get(caller)) or _Caller(self._start_of(caller))
        before = own.real_time_backlog if real_time else own.backlog
        end = own.served + before + seconds
        # A real-time request goes before other tasks while its caller is within its share.
        first = real_time and own.served + before <= self._least()
        for name, other in self._queued.items():
            if name != caller:
                most = other.real_time_backlog if first else other.backlog
                before += min(most, max(0.0, end - other.served))
        return before

    def _started(self, caller: str) -> _Caller:
        """A caller without queued tasks gets one."""
        self._floor = self._lowest()
        found = _Caller(self._start_of(caller))
        self._queued[caller] = self._callers[caller] = found
        if len(self._callers) > len(self._queued) + _REMEMBERED:
            del self._callers[next(name for name in self._callers if name not in self._queued)]
        return found

    def _start_of(self, caller: str | None) -> float:
        """The virtual time at which a caller would start."""
        known = None if caller is None else self._callers.get(caller)
        return max(self._lowest(), known.served) if known else self._lowest()

    def _lowest(self) -> float:
        """The virtual time of the lane, which never falls."""
        return max(self._floor, self._least())

    def _least(self) -> float:
        return min([it.served for it in self._queued.values()], default=self._floor)
