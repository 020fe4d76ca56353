"""What runs next on one device: a state machine over tasks, told the time by its caller.

A task is one text. Tasks wait in a queue per lane, ordered by deadline; lanes are ordered by urgency:

    latency      at once, one at a time
    dynamic      in batches: at once if the device would idle, else held for company until
                 the tightest deadline less the predicted time less a margin
    throughput   in full batches, held for company as dynamic ones are, while deferred work fills the device;
                 in units of at most 10 ms while interactive work is about
    deferred     the same, last, and never held

A batch is held for at most its lane's `max_delay`, and only while a lane below has a unit for the device to do instead,
which is over by then: the device never idles for company.

A lane below the first earns a small share of the device's time while it waits, and goes first when it has earned a
text's time: so what is low ages instead of starving.

Within a lane real-time tasks go first, then the deadline decides. A unit is led by its lane's most urgent task; those
of the same variant and padded width join it in that order, so an answer never depends on its neighbours and no unit
mixes releases. The device runs one unit a stream; a text that is all alone may have all cores instead, and nothing runs
beside it. What runs cannot be stopped, so what is low must be short.
Nothing is admitted that is predicted to finish late, and nothing starts that can no longer finish in time.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from realtime_service.errors import Overloaded
from realtime_service.scheduling.latency_model import LatencyModel
from realtime_service.scheduling.queue import Queue, Task
from realtime_service.settings import Lane
from shared_model.types import ServingPath

#: Share of its timeout within which a request must be predicted to finish, to be let in.
ADMITTED_SHARE = 0.8
#: Interactive work is about while the last of it came within this many seconds.
INTERACTIVE_SECONDS = 1.0
#: Share of its timeout that a request is held for company, at most.
HELD_SHARE = 0.25
#: Share of the device's time that a lane earns while it waits.
EARNED_SHARE = {ServingPath.DYNAMIC: 0.10, ServingPath.THROUGHPUT: 0.05, ServingPath.DEFERRED: 0.02}

INTERACTIVE = (ServingPath.LATENCY, ServingPath.DYNAMIC)
BULK = (ServingPath.THROUGHPUT, ServingPath.DEFERRED)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What a stream does next, without interruption: rows of one lane, one variant and one padded width. `wide`: with
    all cores, and alone."""

    lane: ServingPath
    tasks: tuple[Task, ...]
    tokens: int
    predicted: float
    wide: bool = False

    @property
    def profile(self) -> LatencyModel:
        speeds = self.tasks[0].speeds
        return speeds.wide if self.wide and speeds.wide else speeds.narrow


class Scheduler:
    """Not thread-safe: one event loop owns it. Every admitted task leaves it once, in a unit, as dead or withdrawn.

    `streams`: units that may run at once. `unit_seconds`: longest unit of bulk while interactive work is about.
    """

    def __init__(self, lanes: Mapping[ServingPath, Lane], streams: int = 1, unit_seconds: float = 0.010) -> None:
        self._queues = {path: Queue(lane) for path, lane in lanes.items()}
        queues = list(self._queues.values())
        self._ahead = {path: queues[: place + 1] for place, path in enumerate(lanes)}  # its own queue, too
        self._below = {path: queues[place + 1 :] for place, path in enumerate(lanes)}
        self._streams = streams
        self._unit_seconds = unit_seconds
        self._running: dict[Batch, float] = {}  # until when, as predicted
        self._earned = {path: 0.0 for path in lanes if path in EARNED_SHARE}
        self._last_interactive = -math.inf

    def admit(self, tasks: Sequence[Task], now: float, finish: float | None = None) -> None:
        """Take all tasks of one request (all of one lane and engine), or none. `finish`: what `predicted_finish` has
        just said of them, where it was asked. Raises: Overloaded with a retry hint."""
        queue = self._queues[tasks[0].lane]
        if queue.size + len(tasks) > queue.lane.max_concurrent:
            raise Overloaded(f"the {queue.lane.path} lane is full", max(0.001, queue.backlog))
        if finish is None:
            finish = self.predicted_finish(queue.lane.path, _seconds(tasks), now, tasks[0].real_time)
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

    def predicted_finish(self, path: ServingPath, seconds: float, now: float, real_time: bool = False) -> float:
        """When a request would be answered if admitted now. `seconds`: of device time that it takes itself.

        What runs, what is ahead of it in its own and in more urgent lanes, and the request itself.
        """
        own = self._queues[path]
        ahead = sum([queue.backlog for queue in self._ahead[path]])
        if real_time:
            ahead -= own.backlog - own.real_time_backlog
        return self._free_at(now) + ahead / self._streams + seconds

    def withdraw(self, task: Task) -> None:
        """The caller is gone or the deadline has passed: a waiting task will not run."""
        if task.waiting and not task.withdrawn:
            self._queues[task.lane].forget(task)
        task.withdrawn = True

    def next_unit(self, now: float) -> tuple[Batch | None, list[Task]]:
        """What to run now, and tasks found dead on the way: too late to start.

        With neither, no stream is free or nothing waits; with dead ones only, ask again.
        """
        dead: list[Task] = []
        # Asked after every arrival and every end, and most often there is nothing to do.
        if not self._anything_waits() or not self._has_room():
            return None, dead
        for path in self._owed():
            if unit := _next_of(self._queues[path], now, self._unit_seconds, dead):
                return unit, dead
        instead = math.inf
        for path, queue in self._queues.items():
            if not queue.size:
                continue
            if seconds := self._held(path, now):
                instead = min(instead, seconds)
                continue
            limit = self._bulk_limit(now) if path in BULK else math.inf
            if unit := _next_of(queue, now, min(limit, instead), dead):
                return self._widened(unit), dead
        return None, dead

    def started(self, unit: Batch, now: float) -> None:
        self._running[unit] = now + unit.predicted

    def finished(self, unit: Batch, seconds: float) -> None:
        """Tell how long a unit took, the way to its stream and back included: its profile learns from it, and those who
        waited have earned their share."""
        del self._running[unit]
        unit.profile.observe(len(unit.tasks), unit.tokens, seconds)
        used = seconds * (self._streams if unit.wide else 1)
        for path, earned in self._earned.items():
            own = used if path is unit.lane else 0.0
            if own or self._queues[path].size:
                # Bounded below, so that a busy hour without others costs no more than one unit.
                self._earned[path] = max(-self._unit_seconds, earned + EARNED_SHARE[path] * used - own)

    def waiting(self, path: ServingPath) -> int:
        return self._queues[path].size

    def idle(self, now: float) -> bool:
        """True when nothing but deferred work waits and no interactive request came within the last second."""
        quiet = now - self._last_interactive >= INTERACTIVE_SECONDS
        return quiet and not any(queue.size for path, queue in self._queues.items() if path is not ServingPath.DEFERRED)

    @property
    def busy(self) -> bool:
        """Whether something waits: what comes now will not start at once."""
        return self._anything_waits()

    def _anything_waits(self) -> bool:
        return any(queue.size for queue in self._queues.values())

    def _has_room(self) -> bool:
        return len(self._running) < self._streams and not any(unit.wide for unit in self._running)

    def _free_at(self, now: float) -> float:
        """When the next unit can start, as predicted.

        A unit that is late is thought to take as long again as it is late: a device that hangs closes the door.
        """
        return now if self._has_room() else min(now + abs(end - now) for end in self._running.values())

    def _owed(self) -> list[ServingPath]:
        """Lanes that have earned the time of their next text, lowest first."""
        earners = reversed(self._earned.items())
        return [path for path, earned in earners if earned > 0.0 and self._is_enough(earned, path)]

    def _is_enough(self, earned: float, path: ServingPath) -> bool:
        return any(earned >= head.seconds for head in self._queues[path].heads()[:1])

    def _widened(self, unit: Batch) -> Batch:
        """The same with all cores, where it is all alone and faster so."""
        wide = unit.tasks[0].speeds.wide
        if wide is None or len(unit.tasks) > 1 or self._running or self._anything_waits():
            return unit
        predicted = wide.predict(1, unit.tokens)
        return replace(unit, wide=True, predicted=predicted) if predicted < unit.predicted else unit

    def _held(self, path: ServingPath, now: float) -> float:
        """Seconds for which what waits in a lane is held for company: enough for a whole unit of a lane below; 0 where
        it is not held, or nothing waits below."""
        queue = self._queues[path]
        if not queue.lane.max_delay or not any(it.size for it in self._below[path]):
            return 0.0
        seconds = self._close_at(queue, now) - now
        return seconds if seconds >= self._unit_seconds else 0.0

    def _close_at(self, queue: Queue, now: float) -> float:
        """When the waiting batch of a lane must start; `now` if it is full or empty."""
        heads = queue.heads()
        if not heads or queue.size >= _most_rows(queue.lane, heads[0]):
            return now
        due, profile = queue.due(heads[0]), heads[0].speeds.narrow
        latest = due - profile.predict(queue.size + 1, heads[0].tokens) - profile.margin
        held = min(queue.lane.max_delay, HELD_SHARE * (due - heads[0].arrived))
        return min(latest, heads[0].arrived + held)

    def _bulk_limit(self, now: float) -> float:
        """Seconds a unit of throughput or deferred work may take now."""
        return math.inf if now - self._last_interactive >= INTERACTIVE_SECONDS else self._unit_seconds


def _next_of(queue: Queue, now: float, limit: float, dead: list[Task]) -> Batch | None:
    """Take the most urgent task that can still finish in time, and its company; those that cannot go to `dead`."""
    for leader, *others in iter(queue.heads, []):
        if now + leader.seconds <= _deadline(leader):
            return _unit(queue, leader, min(now + limit, _latest_end(leader, others, now)), now)
        queue.take(leader)
        dead.append(leader)
    return None


def _unit(queue: Queue, leader: Task, end: float, now: float) -> Batch:
    """The leader, and tasks like it while they fit, the unit is over by `end` and inside every deadline of its own.

    It has one of the sizes that its engine is warmed for; who is left over leads or joins the next.
    """
    lane = queue.lane
    company = queue.company(leader, _most_rows(lane, leader))
    tasks = tuple(company[: _rows(company, end, now)])
    for task in tasks:
        queue.take(task)
    return Batch(lane.path, tasks, leader.tokens, leader.speeds.narrow.predict(len(tasks), leader.tokens))


def _most_rows(lane: Lane, leader: Task) -> int:
    """Of a unit of texts like the leader."""
    return max(1, min(lane.max_rows, lane.token_budget // leader.tokens))


def _rows(company: Sequence[Task], end: float, now: float) -> int:
    """How many of the company make the unit."""
    if len(company) == 1:
        return 1
    leader = company[0]
    rows, end = 1, min(end, _deadline(leader))
    for count in range(2, len(company) + 1):
        end = min(end, _deadline(company[count - 1]))
        if now + leader.speeds.narrow.predict(count, leader.tokens) > end:
            break
        rows = count
    return leader.speeds.rows_below(rows, leader.tokens)


def _latest_end(leader: Task, others: Sequence[Task], now: float) -> float:
    """When a unit must be over for the next most urgent task of another kind to be in time, if it can still be."""
    if not others:
        return math.inf
    latest = _deadline(others[0]) - others[0].seconds
    return latest if now + leader.seconds <= latest else math.inf


def _seconds(tasks: Sequence[Task]) -> float:
    """Device time that the texts of one request take together: those of one padded width as one batch."""
    if len(tasks) == 1:
        return tasks[0].seconds
    predict = tasks[0].speeds.narrow.predict
    return sum(predict(count, tokens) for tokens, count in Counter(task.tokens for task in tasks).items())


def _deadline(task: Task) -> float:
    return math.inf if task.deadline is None else task.deadline
