"""What runs next on one device: a state machine over tasks, told the time by its caller.

A task is one text. Tasks wait in a queue per lane, ordered by deadline; lanes are ordered by urgency:

    latency      at once, one at a time
    dynamic      in batches: at once if the device would idle, else held for company until
                 the tightest deadline less the predicted time less a margin
    throughput   in full batches; in units of at most 10 ms while interactive work is about
    deferred     the same, last

What runs cannot be stopped, so what is low must be short. Nothing is admitted that is predicted to finish late,
and nothing starts that can no longer finish in time.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from realtime_service.errors import Overloaded
from realtime_service.scheduling.profile import Profile
from realtime_service.settings import Lane
from shared_model.encoding import Encoding, padded
from shared_model.types import Precision, ServingPath

#: Share of its timeout within which a request must be predicted to finish, to be let in.
ADMITTED_SHARE = 0.8
#: Interactive work is about while the last of it came within this many seconds.
INTERACTIVE_SECONDS = 1.0
#: Share of its timeout that a dynamic request is held for company, at most.
HELD_SHARE = 0.25

INTERACTIVE = (ServingPath.LATENCY, ServingPath.DYNAMIC)
BULK = (ServingPath.THROUGHPUT, ServingPath.DEFERRED)


@dataclass(eq=False, slots=True)
class Task:
    """One text on its way. Times are monotonic seconds; `deadline` is None when the caller gave none."""

    lane: ServingPath
    encoding: Encoding
    arrived: float
    deadline: float | None
    withdrawn: bool = False
    waiting: bool = False
    #: Seconds of device time it was expected to add when it was admitted.
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Unit:
    """What the device does next, without interruption: rows of one lane."""

    lane: ServingPath
    precision: Precision
    tasks: tuple[Task, ...]
    tokens: int
    predicted: float


@dataclass(slots=True)
class _Queue:
    """Tasks of one lane by deadline. Withdrawn tasks stay until they come up; `size` does not count them."""

    lane: Lane
    heap: list[tuple[float, int, Task]] = field(default_factory=list)
    size: int = 0
    #: Seconds of device time that the waiting tasks add up to.
    backlog: float = 0.0


@dataclass(slots=True)
class _Batch:
    """A unit being put together at `now`; `limit`: seconds it may take. Times are predicted."""

    profile: Profile
    lane: Lane
    now: float
    limit: float
    tasks: list[Task] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    tightest: float = float("inf")

    def can_start_with(self, task: Task) -> bool:
        return self.now + self._seconds_with(task) <= self._tightest_with(task)

    def gains_by(self, task: Task) -> bool:
        """Whether a further row fits, harms no deadline, and costs less here than in a batch of its own.

        A row pads all others to its length: one long text among short ones costs more than two batches.
        """
        rows, seconds = len(self.tasks) + 1, self._seconds_with(task)
        fits = rows * self._tokens_with(task) <= self.lane.token_budget and seconds <= self.limit
        alone = self.profile.predict(1, padded(task.encoding.tokens))
        return fits and self.now + seconds <= self._tightest_with(task) and seconds <= self.seconds + alone

    def add(self, task: Task) -> None:
        self.seconds, self.tightest = self._seconds_with(task), self._tightest_with(task)
        self.tokens = self._tokens_with(task)
        self.tasks.append(task)

    def unit(self) -> Unit:
        return Unit(self.lane.path, self.lane.precision, tuple(self.tasks), self.tokens, self.seconds)

    def _tokens_with(self, task: Task) -> int:
        return max(self.tokens, padded(task.encoding.tokens))

    def _seconds_with(self, task: Task) -> float:
        return self.profile.predict(len(self.tasks) + 1, self._tokens_with(task))

    def _tightest_with(self, task: Task) -> float:
        return min(self.tightest, float("inf") if task.deadline is None else task.deadline)


@dataclass(frozen=True, slots=True)
class Limits:
    """`unit` and `delay` in seconds; see ServiceSettings."""

    unit: float = 0.010
    delay: float = 0.050


class Scheduler:
    """Not thread-safe: one event loop owns it. Every admitted task leaves it once, in a unit, as dead or withdrawn."""

    def __init__(
        self, lanes: Mapping[ServingPath, Lane], profiles: Mapping[Precision, Profile], limits: Limits
    ) -> None:
        self._queues = {path: _Queue(lane) for path, lane in lanes.items()}
        self._order = list(lanes)
        self._profiles = profiles
        self._limits = limits
        self._sequence = 0
        self._busy_until = 0.0
        self._last_interactive = float("-inf")

    def admit(self, tasks: Sequence[Task], now: float) -> None:
        """Take all tasks of one request (all of one lane), or none. Raises: Overloaded with a retry hint."""
        queue = self._queues[tasks[0].lane]
        if queue.size + len(tasks) > queue.lane.max_concurrent:
            raise Overloaded(f"the {queue.lane.path} lane is full", max(0.001, queue.backlog))
        longest = max(task.encoding.tokens for task in tasks)
        finish = self.predicted_finish(queue.lane.path, len(tasks), longest, now)
        for task in tasks:
            if task.deadline is None:
                continue
            latest = task.arrived + ADMITTED_SHARE * (task.deadline - task.arrived)
            if finish > latest:
                raise Overloaded("the answer would come too late", max(0.001, finish - latest))
        for task in tasks:
            self._sequence += 1
            heapq.heappush(queue.heap, (self._due(task, queue.lane), self._sequence, task))
            task.cost = self._cost(task, queue.lane)
            task.waiting = True
            queue.size += 1
            queue.backlog += task.cost
        if queue.lane.path in INTERACTIVE:
            self._last_interactive = now

    def predicted_finish(self, path: ServingPath, rows: int, tokens: int, now: float) -> float:
        """When a request of `rows` texts, the longest of `tokens` tokens, would be answered if admitted now.

        What runs, what is ahead of it in its own and in more urgent lanes, and the request itself.
        """
        lane = self._queues[path].lane
        ahead = sum(self._queues[other].backlog for other in self._order[: self._order.index(path) + 1])
        own = self._profiles[lane.precision].predict(rows, padded(tokens))
        return max(now, self._busy_until) + ahead + own

    def withdraw(self, task: Task) -> None:
        """The caller is gone or the deadline has passed: a waiting task will not run."""
        if task.waiting and not task.withdrawn:
            self._forget(task)
        task.withdrawn = True

    def next_unit(self, now: float) -> tuple[Unit | None, list[Task]]:
        """What to run now, and tasks found dead on the way: too late to start.

        With neither, nothing waits; with dead ones only, ask again.
        """
        dead: list[Task] = []
        for path in self._order:
            if path is ServingPath.DYNAMIC and self._held(now):
                continue
            limit = self._bulk_limit(now) if path in BULK else float("inf")
            if unit := self._take(self._queues[path], now, limit, dead):
                return unit, dead
        return None, dead

    def started(self, unit: Unit, now: float) -> None:
        self._busy_until = now + unit.predicted

    def finished(self, unit: Unit, now: float, seconds: float) -> None:
        """Tell how long a unit really took: its profile learns from it."""
        self._busy_until = now
        self._profiles[unit.precision].observe(len(unit.tasks), unit.tokens, seconds)

    def waiting(self, path: ServingPath) -> int:
        return self._queues[path].size

    def idle(self, now: float) -> bool:
        """True when nothing but deferred work waits and no interactive request came within the last second."""
        quiet = now - self._last_interactive >= INTERACTIVE_SECONDS
        return quiet and not any(self._queues[path].size for path in self._order if path is not ServingPath.DEFERRED)

    def _take(self, queue: _Queue, now: float, limit: float, dead: list[Task]) -> Unit | None:
        """Pop the longest prefix by deadline that makes one good batch."""
        batch = _Batch(self._profiles[queue.lane.precision], queue.lane, now, limit)
        while queue.heap and len(batch.tasks) < queue.lane.max_rows:
            task = queue.heap[0][2]
            if batch.tasks and not task.withdrawn and not batch.gains_by(task):
                break
            heapq.heappop(queue.heap)
            if task.withdrawn:
                continue
            self._forget(task)
            if batch.tasks or batch.can_start_with(task):
                batch.add(task)
            else:
                dead.append(task)
        return batch.unit() if batch.tasks else None

    def _held(self, now: float) -> bool:
        """Whether dynamic work waits for company: only while the device has a whole unit of bulk work to do instead."""
        return any(self._queues[path].size for path in BULK) and now + self._limits.unit <= self._close_at(now)

    def _close_at(self, now: float) -> float:
        """When the waiting dynamic batch must start; `now` if it is full or empty."""
        queue = self._queues[ServingPath.DYNAMIC]
        while queue.heap and queue.heap[0][2].withdrawn:
            heapq.heappop(queue.heap)
        if not queue.heap or queue.size >= queue.lane.max_rows:
            return now
        due, _, head = queue.heap[0]
        profile = self._profiles[queue.lane.precision]
        rows = min(queue.size + 1, queue.lane.max_rows)
        latest = due - profile.predict(rows, padded(head.encoding.tokens)) - profile.margin
        held = min(self._limits.delay, HELD_SHARE * (due - head.arrived))
        return min(latest, head.arrived + held)

    def _bulk_limit(self, now: float) -> float:
        """Seconds a unit of throughput or deferred work may take now."""
        if now - self._last_interactive >= INTERACTIVE_SECONDS:
            return float("inf")
        return self._limits.unit

    def _due(self, task: Task, lane: Lane) -> float:
        return task.deadline if task.deadline is not None else task.arrived + lane.assumed_timeout

    def _forget(self, task: Task) -> None:
        queue = self._queues[task.lane]
        task.waiting = False
        queue.size -= 1
        # Sums of floats drift: an empty queue is exactly empty.
        queue.backlog = queue.backlog - task.cost if queue.size else 0.0

    def _cost(self, task: Task, lane: Lane) -> float:
        profile, tokens = self._profiles[lane.precision], padded(task.encoding.tokens)
        return profile.predict(1, tokens) if lane.max_rows == 1 else profile.share(tokens)
