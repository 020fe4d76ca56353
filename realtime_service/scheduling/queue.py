"""The queue of one lane: tasks grouped by engine and padded width, each group in its order."""

import heapq
from dataclasses import dataclass, field

from realtime_service.scheduling.caller_shares import CallerShares
from realtime_service.scheduling.latency_model import VariantLatency
from realtime_service.settings import Lane
from shared_model.encoding import Encoding, coarse_bucket
from shared_model.types import ServingPath


@dataclass(eq=False, slots=True)
class Task:
    """One text to score. Times are monotonic seconds; `deadline`: None without one.

    `latency`: of the variant that will run the task; tasks of two releases never share it. `real_time`: the task goes
    before all others of its lane whose callers are within their shares. `caller`: by whom shares are counted.
    """

    lane: ServingPath
    encoding: Encoding
    latency: VariantLatency
    arrived: float
    deadline: float | None
    real_time: bool = False
    caller: str = ""
    withdrawn: bool = False
    queued: bool = False
    #: Seconds of device time that the task was predicted to add when it was admitted.
    cost: float = 0.0
    #: Tokens that the task occupies in a batch, padding included.
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = coarse_bucket(self.encoding.tokens)

    @property
    def seconds(self) -> float:
        """Predicted time of a batch of this task alone, on one stream."""
        return self.latency.narrow.predict(1, self.tokens)

    @property
    def undisturbed(self) -> float:
        """The same as it was at warm-up, whatever slows the machine now."""
        return self.latency.narrow.at_warm_up(1, self.tokens)


#: Tasks of one kind may share a batch: one engine, so never two releases; one padded width, because a CPU engine at low
#: precision rounds a row differently at another width, and an answer must not depend on its batch mates.
_Kind = tuple[VariantLatency, int]
#: Sorts real-time tasks first, then by deadline, then by arrival.
_Entry = tuple[bool, float, int, Task]


@dataclass(slots=True)
class Queue:
    """Tasks of one lane. A withdrawn task stays in its heap until it reaches the top; `size` does not count it."""

    lane: Lane
    size: int = 0
    #: Seconds of device time of all queued tasks, and of the real-time ones among them.
    backlog: float = 0.0
    real_time_backlog: float = 0.0
    shares: CallerShares = field(default_factory=CallerShares)
    #: By caller. None of them is empty.
    _heaps: dict[_Kind, dict[str, list[_Entry]]] = field(default_factory=dict)
    _sequence: int = 0

    def push(self, task: Task) -> None:
        self._sequence += 1
        kind = (task.latency, task.tokens)
        # The first task of its kind needs a batch of its own; the next ones join it.
        joins = self.lane.max_rows > 1 and kind in self._heaps
        task.cost = task.latency.share(self.lane.rows(task.tokens), task.tokens) if joins else task.seconds
        task.queued = True
        heap = self._heaps.setdefault(kind, {}).setdefault(task.caller, [])
        heapq.heappush(heap, (not task.real_time, self.due(task), self._sequence, task))
        self.shares.entered(task.caller, task.cost, task.real_time)
        self.size += 1
        self.backlog += task.cost
        self.real_time_backlog += task.cost if task.real_time else 0.0

    def forget(self, task: Task) -> None:
        """Stop counting a queued task that was withdrawn or taken."""
        task.queued = False
        self.shares.left(task.caller, task.cost, task.real_time)
        self.size -= 1
        self.backlog -= task.cost
        self.real_time_backlog -= task.cost if task.real_time else 0.0
        if not self.size:
            # Rounding errors add up, and withdrawn tasks keep their requests alive: an empty queue starts afresh.
            self.backlog = self.real_time_backlog = 0.0
            self._heaps.clear()

    def heads(self) -> list[Task]:
        """The most urgent task of each kind, most urgent first."""
        if not self.size:
            return []
        beyond, first = self.shares.beyond(), []
        for kind, heaps in list(self._heaps.items()):
            for caller in [caller for caller, heap in heaps.items() if not _live(heap)]:
                del heaps[caller]
            if heaps:
                first.append(min([(caller in beyond, heap[0]) for caller, heap in heaps.items()]))
            else:
                del self._heaps[kind]
        return [entry[-1] for _, entry in sorted(first)]

    def batch_mates(self, head: Task, most: int) -> list[Task]:
        """`head` and the tasks that may share a batch with it, at most `most`, in order. They stay queued."""
        heaps = self._heaps[head.latency, head.tokens]
        if most == 1 or (len(heaps) == 1 and len(heaps[head.caller]) == 1):
            return [head]
        beyond = self.shares.beyond()
        queued = (
            (caller in beyond, entry) for caller, heap in heaps.items() for entry in heap if not entry[-1].withdrawn
        )
        return [entry[-1] for _, entry in heapq.nsmallest(most, queued)]

    def serve(self, head: Task) -> None:
        """Remove the head of its kind and caller, because it runs now."""
        self.shares.charge(head.caller, head.cost)
        self.take(head)

    def ahead(self, caller: str | None, seconds: float, real_time: bool) -> float:
        """Seconds of queued work before a request of this caller, None for a new one."""
        if not self.shares.contended and (caller is None or self.shares.only(caller)):
            return self.real_time_backlog if real_time else self.backlog
        return self.shares.ahead(caller, seconds, real_time)

    def take(self, head: Task) -> None:
        """Remove the head of its kind and caller."""
        heap = self._heaps[head.latency, head.tokens][head.caller]
        if _live(heap):
            heapq.heappop(heap)
        self.forget(head)

    def due(self, task: Task) -> float:
        """The task's deadline, or the one that its lane assumes for a task without."""
        return task.deadline if task.deadline is not None else task.arrived + self.lane.assumed_timeout


def _live(heap: list[_Entry]) -> bool:
    """Drop withdrawn tasks from the top; False when the heap is empty then."""
    while heap and heap[0][-1].withdrawn:
        heapq.heappop(heap)
    return bool(heap)
