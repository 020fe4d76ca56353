"""The tasks of one lane that wait, kept so that a batch can be cut from them: by what may run together, by deadline."""

import heapq
from dataclasses import dataclass, field

from realtime_service.scheduling.latency_model import Speeds
from realtime_service.settings import Lane
from shared_model.encoding import Encoding, coarse_bucket
from shared_model.types import ServingPath


@dataclass(eq=False, slots=True)
class Task:
    """One text on its way. Times are monotonic seconds; `deadline` is None when the caller gave none.

    `speeds` are those of the variant that will run it: tasks of two releases never have the same. `real_time`: it goes
    before all others of its lane.
    """

    lane: ServingPath
    encoding: Encoding
    speeds: Speeds
    arrived: float
    deadline: float | None
    real_time: bool = False
    withdrawn: bool = False
    waiting: bool = False
    #: Seconds of device time it was expected to add when it was admitted.
    cost: float = 0.0
    #: Tokens it occupies in a batch, padding included.
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = coarse_bucket(self.encoding.tokens)

    @property
    def seconds(self) -> float:
        """How long it would take alone, on one stream."""
        return self.speeds.narrow.predict(1, self.tokens)


#: What may share a unit: one engine, so never two releases; one padded width, because a CPU engine at low precision
#: rounds a row differently at another width, and an answer must not depend on its neighbours.
_Kind = tuple[Speeds, int]
#: In order: real-time ones first, then by deadline, then as they came.
_Entry = tuple[bool, float, int, Task]


@dataclass(slots=True)
class Queue:
    """Tasks of one lane. Withdrawn tasks stay in their heap until they come up; `size` does not count them."""

    lane: Lane
    size: int = 0
    #: Seconds of device time that the waiting tasks add up to, and those of them that are real-time.
    backlog: float = 0.0
    real_time_backlog: float = 0.0
    _heaps: dict[_Kind, list[_Entry]] = field(default_factory=dict)
    _sequence: int = 0

    def push(self, task: Task) -> None:
        self._sequence += 1
        kind = (task.speeds, task.tokens)
        # The first of its kind needs a unit of its own, the next ones join it.
        joins = self.lane.max_rows > 1 and kind in self._heaps
        task.cost = task.speeds.narrow.share(task.tokens) if joins else task.seconds
        task.waiting = True
        heapq.heappush(self._heaps.setdefault(kind, []), (not task.real_time, self.due(task), self._sequence, task))
        self.size += 1
        self.backlog += task.cost
        self.real_time_backlog += task.cost if task.real_time else 0.0

    def forget(self, task: Task) -> None:
        """A waiting task will not be taken from here any more, or has just been."""
        task.waiting = False
        self.size -= 1
        self.backlog -= task.cost
        self.real_time_backlog -= task.cost if task.real_time else 0.0
        if not self.size:
            # Sums of floats drift, and withdrawn tasks hold on to their requests: an empty queue is exactly empty.
            self.backlog = self.real_time_backlog = 0.0
            self._heaps.clear()

    def heads(self) -> list[Task]:
        """The most urgent task of each kind, most urgent first."""
        if not self.size:
            return []
        for kind in [kind for kind, heap in self._heaps.items() if not _live(heap)]:
            del self._heaps[kind]
        return [heap[0][-1] for heap in sorted(self._heaps.values())]

    def company(self, head: Task, most: int) -> list[Task]:
        """`head` and what may share a unit with it, at most `most`, in order. They stay here until taken."""
        heap = self._heaps[head.speeds, head.tokens]
        if most == 1 or len(heap) == 1:
            return [head]
        return [entry[-1] for entry in heapq.nsmallest(most, (entry for entry in heap if not entry[-1].withdrawn))]

    def take(self, head: Task) -> None:
        """Remove the head of its kind."""
        heap = self._heaps[head.speeds, head.tokens]
        if _live(heap):
            heapq.heappop(heap)
        self.forget(head)

    def due(self, task: Task) -> float:
        """When its answer is wanted: its deadline, or what is assumed for a task without one."""
        return task.deadline if task.deadline is not None else task.arrived + self.lane.assumed_timeout


def _live(heap: list[_Entry]) -> bool:
    """Drop withdrawn tasks from the top; False when nothing is left."""
    while heap and heap[0][-1].withdrawn:
        heapq.heappop(heap)
    return bool(heap)
