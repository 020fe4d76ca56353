"""What runs next on one device: a state machine over tasks, told the time by its caller.

A task is one text. Tasks wait in a queue per lane, ordered by deadline; lanes are ordered by urgency:

    latency      at once, one at a time
    dynamic      in batches: at once if the device would idle, else held for company until
                 the tightest deadline less the predicted time less a margin
    throughput   in full batches; in units of at most 10 ms while interactive work is about
    deferred     the same, last

A unit is led by its lane's most urgent task; those of the same engine and padded width join it by deadline, so an
answer never depends on its neighbours and no unit mixes releases. What runs cannot be stopped, so what is low must be
short. Nothing is admitted that is predicted to finish late, and nothing starts that can no longer finish in time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from realtime_service.errors import Overloaded
from realtime_service.scheduling.profile import Profile
from realtime_service.scheduling.queue import Queue, Task
from realtime_service.settings import Lane
from shared_model.types import ServingPath

#: Share of its timeout within which a request must be predicted to finish, to be let in.
ADMITTED_SHARE = 0.8
#: Interactive work is about while the last of it came within this many seconds.
INTERACTIVE_SECONDS = 1.0
#: Share of its timeout that a dynamic request is held for company, at most.
HELD_SHARE = 0.25

INTERACTIVE = (ServingPath.LATENCY, ServingPath.DYNAMIC)
BULK = (ServingPath.THROUGHPUT, ServingPath.DEFERRED)


@dataclass(frozen=True, slots=True)
class Unit:
    """What the device does next, without interruption: rows of one lane, one engine and one padded width."""

    lane: ServingPath
    tasks: tuple[Task, ...]
    tokens: int
    predicted: float

    @property
    def profile(self) -> Profile:
        return self.tasks[0].profile


@dataclass(frozen=True, slots=True)
class Limits:
    """`unit` and `delay` in seconds; see ServiceSettings."""

    unit: float = 0.010
    delay: float = 0.050


class Scheduler:
    """Not thread-safe: one event loop owns it. Every admitted task leaves it once, in a unit, as dead or withdrawn."""

    def __init__(self, lanes: Mapping[ServingPath, Lane], limits: Limits) -> None:
        self._queues = {path: Queue(lane) for path, lane in lanes.items()}
        self._order = list(lanes)
        self._limits = limits
        self._busy_until = 0.0
        self._last_interactive = float("-inf")

    def admit(self, tasks: Sequence[Task], now: float) -> None:
        """Take all tasks of one request (all of one lane and engine), or none. Raises: Overloaded with a retry hint."""
        queue = self._queues[tasks[0].lane]
        if queue.size + len(tasks) > queue.lane.max_concurrent:
            raise Overloaded(f"the {queue.lane.path} lane is full", max(0.001, queue.backlog))
        rows = Counter(task.tokens for task in tasks)
        finish = self.predicted_finish(queue.lane.path, tasks[0].profile, rows, now)
        for task in tasks:
            if task.deadline is None:
                continue
            latest = task.arrived + ADMITTED_SHARE * (task.deadline - task.arrived)
            if finish > latest:
                raise Overloaded("the answer would come too late", max(0.001, finish - latest))
        for task in tasks:
            queue.push(task)
        if queue.lane.path in INTERACTIVE:
            self._last_interactive = now

    def predicted_finish(self, path: ServingPath, profile: Profile, rows: Mapping[int, int], now: float) -> float:
        """When a request would be answered if admitted now. `rows`: how many texts it has of each padded width.

        What runs, what is ahead of it in its own and in more urgent lanes, and the request itself.
        """
        ahead = sum(self._queues[other].backlog for other in self._order[: self._order.index(path) + 1])
        own = sum(profile.predict(count, tokens) for tokens, count in rows.items())
        return max(now, self._busy_until) + ahead + own

    def withdraw(self, task: Task) -> None:
        """The caller is gone or the deadline has passed: a waiting task will not run."""
        if task.waiting and not task.withdrawn:
            self._queues[task.lane].forget(task)
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
            if unit := _next_of(self._queues[path], now, limit, dead):
                return unit, dead
        return None, dead

    def started(self, unit: Unit, now: float) -> None:
        self._busy_until = now + unit.predicted

    def finished(self, unit: Unit, now: float, seconds: float) -> None:
        """Tell how long a unit really took: its profile learns from it."""
        self._busy_until = now
        unit.profile.observe(len(unit.tasks), unit.tokens, seconds)

    def waiting(self, path: ServingPath) -> int:
        return self._queues[path].size

    def idle(self, now: float) -> bool:
        """True when nothing but deferred work waits and no interactive request came within the last second."""
        quiet = now - self._last_interactive >= INTERACTIVE_SECONDS
        return quiet and not any(self._queues[path].size for path in self._order if path is not ServingPath.DEFERRED)

    def _held(self, now: float) -> bool:
        """Whether dynamic work waits for company: only while the device has a whole unit of bulk work to do instead."""
        return any(self._queues[path].size for path in BULK) and now + self._limits.unit <= self._close_at(now)

    def _close_at(self, now: float) -> float:
        """When the waiting dynamic batch must start; `now` if it is full or empty."""
        queue = self._queues[ServingPath.DYNAMIC]
        heads = queue.heads()
        if not heads or queue.size >= queue.lane.max_rows:
            return now
        due, profile = queue.due(heads[0]), heads[0].profile
        latest = due - profile.predict(queue.size + 1, heads[0].tokens) - profile.margin
        held = min(self._limits.delay, HELD_SHARE * (due - heads[0].arrived))
        return min(latest, heads[0].arrived + held)

    def _bulk_limit(self, now: float) -> float:
        """Seconds a unit of throughput or deferred work may take now."""
        if now - self._last_interactive >= INTERACTIVE_SECONDS:
            return float("inf")
        return self._limits.unit


def _next_of(queue: Queue, now: float, limit: float, dead: list[Task]) -> Unit | None:
    """Take the most urgent task that can still finish in time, and its company; those that cannot go to `dead`."""
    for leader, *others in iter(queue.heads, []):
        if now + leader.seconds <= _deadline(leader):
            return _unit(queue, leader, min(now + limit, _latest_end(leader, others, now)), now)
        queue.take(leader)
        dead.append(leader)
    return None


def _unit(queue: Queue, leader: Task, end: float, now: float) -> Unit:
    """The leader, and tasks like it while they fit, the unit is over by `end` and inside every deadline of its own."""
    lane, tasks = queue.lane, list[Task]()
    most, seconds = min(lane.max_rows, lane.token_budget // leader.tokens), 0.0
    for task in queue.alike(leader):
        longer, end = leader.profile.predict(len(tasks) + 1, leader.tokens), min(end, _deadline(task))
        if tasks and (len(tasks) >= most or now + longer > end):
            break
        queue.take(task)
        tasks.append(task)
        seconds = longer
    return Unit(lane.path, tuple(tasks), leader.tokens, seconds)


def _latest_end(leader: Task, others: Sequence[Task], now: float) -> float:
    """When a unit must be over for the next most urgent task of another kind to be in time, if it can still be."""
    latest = min((_deadline(task) - task.seconds for task in others[:1]), default=float("inf"))
    return latest if now + leader.seconds <= latest else float("inf")


def _deadline(task: Task) -> float:
    return float("inf") if task.deadline is None else task.deadline
