"""Decides which batch runs next on one device: a state machine over tasks, with the time given by its caller.

A task is one text. Each lane has a queue ordered by deadline; lanes are ordered by urgency:

    latency      at once; two of a width that wait while all streams are busy share a batch
    dynamic      in batches: at once if the device would idle, else after a batching delay, which ends before
                 the tightest deadline less the predicted time less a margin
    throughput   in full batches, with the same batching delay while deferred work fills the device
    deferred     as throughput, last, and without a batching delay

Short batches: those of a lane take at most 20 ms, or one text, if a request of an interactive lane above it came within
the last second. Texts that take longer than that, each alone on an undisturbed machine, then leave one of several
streams to others.

Batching delay: a batch waits for batch mates at most its lane's `max_delay`, and only while a lower lane has a batch
that ends by then. The device never idles for it.

Weighted fair share: each lane below the first gains credit, a small share of the device's time, while tasks are queued
in it. It goes first once its credit covers the time of its next text, so that no lane starves.

Within a lane, callers within their fair share go first (`caller_shares`); among them real-time tasks, then the earliest
deadline. The most urgent task leads a batch, and tasks of
the same variant and padded width join it in that order. So an answer never depends on batch mates, and no batch mixes
releases. Each stream runs one batch at a time; the text of the only call may use all cores, and then no other batch
runs. A batch cannot be stopped, so batches of lower lanes must be short. On a GPU, bulk batches have a stream of their
own, whose kernels yield: interactive batches wait only for each other.

While all streams are busy, batches may be taken ahead, so that a stream that ends one has the next at once: only single
texts, whose turn it is, which are short and begin soon, because they cannot be stopped or overtaken any more either.

Admission control rejects a request that is predicted to finish late. A task whose answer can no longer reach its caller
in time is dropped before it starts.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from realtime_service.errors import Overloaded
from realtime_service.scheduling.batch import Batch
from realtime_service.scheduling.queue import Queue, Task
from realtime_service.settings import Lane
from shared_model.types import ServingPath

#: A request is admitted if it is predicted to finish within this share of its timeout, or but for these seconds of it.
ADMITTED_SHARE = 0.8
ADMITTED_MARGIN = 0.016
#: The time that an answer of a busy process may take to its caller: this share of its timeout, at most these seconds.
DELIVERY_SHARE, DELIVERY_SECONDS = 0.05, 0.004
#: Batches of the lanes below are short for this many seconds after an interactive request.
INTERACTIVE_SECONDS = 1.0
#: About so long after a call is read its text is queued.
STARVED_SECONDS = 0.0025
#: Upper bound of the batching delay, as a share of a request's timeout.
BATCHING_DELAY_SHARE = 0.25
#: Share of the device's time that a lane gains as credit while tasks are queued in it.
FAIR_SHARE = {ServingPath.DYNAMIC: 0.10, ServingPath.THROUGHPUT: 0.05, ServingPath.DEFERRED: 0.02}
#: For so many seconds after calls were under way together, a text by itself is not taken to be alone: callers that take
#: turns are not under way together at each moment.
TOGETHER_SECONDS = 0.05
#: Of the texts alone on a device that are predicted to take longer on all cores than on one, one in so many runs there
#: all the same, for only batches that run show it that all cores have become faster again.
WIDE_TRIED_EVERY = 16

INTERACTIVE = (ServingPath.LATENCY, ServingPath.DYNAMIC)
BULK = (ServingPath.THROUGHPUT, ServingPath.DEFERRED)


class Scheduler:
    """Not thread-safe: one event loop owns it. Every admitted task leaves it once: in a batch, expired or withdrawn.

    `streams`: batches that may run at once. `bulk_batch_seconds`: longest batch soon after an interactive request of a
    lane above, and longest that is taken ahead. `ahead`: how many may be. `beside`: bulk batches that run beside the
    others on a device where they yield to them, and only there.
    """

    def __init__(
        self,
        lanes: Mapping[ServingPath, Lane],
        streams: int,
        bulk_batch_seconds: float,
        ahead: int = 0,
        beside: int = 0,
    ) -> None:
        self._queues = {path: Queue(lane) for path, lane in lanes.items()}
        queues = list(self._queues.values())
        self._ahead = {path: queues[:place] for place, path in enumerate(lanes)}
        self._streams, self._beside = streams, beside
        self._below = {
            path: [queue for queue in queues[place + 1 :] if self._shares(path, queue.lane.path)]
            for place, path in enumerate(lanes)
        }
        self._most_running = streams + ahead
        self._bulk_batch_seconds = bulk_batch_seconds
        self._running: dict[Batch, float] = {}  # until when, as predicted
        self._credit = {path: 0.0 for path in lanes if path in FAIR_SHARE}
        self._last_interactive = dict.fromkeys(INTERACTIVE, -math.inf)
        self._last_together = -math.inf
        self._came_alone: Task | None = None  # the last that did, until another is admitted
        self._since_wide = 0  # texts alone that ran on one core

    def admit(self, tasks: Sequence[Task], now: float, finish: float | None = None, alone: bool = True) -> None:
        """Admit all tasks of one request (of one lane and engine), or none. `finish`: the prediction of
        `predicted_finish`, where it was asked a moment ago. `alone`: no other call is under way, whose texts might
        come any moment. Raises: Overloaded with a retry hint."""
        queue = self._queues[tasks[0].lane]
        full = queue.size + len(tasks) > queue.lane.max_concurrent
        if full and not queue.shares.has_room(tasks[0].caller, len(tasks), queue.lane.max_concurrent):
            raise Overloaded(f"the {queue.lane.path} lane is full", queue.backlog)
        if finish is None:
            first = tasks[0]
            finish = self.predicted_finish(first.lane, _seconds(tasks), now, first.real_time, first.caller)
        for task in tasks:
            if task.deadline is None:
                continue
            latest = latest_finish(task.arrived, task.deadline)
            if finish > latest:
                raise Overloaded("the answer would come too late", finish - latest)
        if self._running or self.busy or not alone:
            self._last_together = now
        self._came_alone = tasks[0] if now - self._last_together > TOGETHER_SECONDS else None
        for task in tasks:
            queue.push(task)
        if queue.lane.path in INTERACTIVE:
            self._last_interactive[queue.lane.path] = now

    def predicted_finish(
        self, path: ServingPath, seconds: float, now: float, real_time: bool = False, caller: str | None = None
    ) -> float:
        """When a request would be answered if admitted now: after the running batches, the backlog of more urgent
        lanes, the part of its own lane's that goes before it, and its own device time, `seconds`. `caller`: None for
        the one that has tasks in the lane, and for a new one if there are several."""
        own = self._queues[path]
        ahead = sum([queue.backlog for queue in self._ahead[path]]) + own.ahead(caller, seconds, real_time)
        return self._free_at(path, now) + ahead / self._streams + seconds

    def withdraw(self, task: Task) -> None:
        """Remove a queued task, whose caller left or whose deadline has passed."""
        if task.queued and not task.withdrawn:
            self._queues[task.lane].forget(task)
        task.withdrawn = True

    def next_batch(self, now: float) -> tuple[Batch | None, list[Task]]:
        """The batch to run now, and the expired tasks found on the way.

        With neither, no stream is free or no task is queued; with expired tasks only, call again.
        """
        expired: list[Task] = []
        # Called after every arrival and every end of a batch, and most often there is nothing to do.
        if not self.busy or not self._has_free_stream():
            return self._taken_ahead(now), expired
        for path in self._lanes_with_credit():
            longest = self._longest(path, now)
            free = self._free_streams(path)
            if free and (batch := _next_of(self._queues[path], free, now, self._bulk_batch_seconds, expired, longest)):
                return batch, expired
        limit, recent = math.inf, now - INTERACTIVE_SECONDS
        for path, queue in self._queues.items():
            if queue.size and (free := self._free_streams(path)):
                if delay := self._batching_delay(path, now):
                    limit = min(limit, delay)
                elif batch := _next_of(queue, free, now, limit, expired, self._longest(path, now)):
                    return self._widened(batch, now), expired
            if self._last_interactive.get(path, recent) > recent:
                limit = min(limit, self._bulk_batch_seconds)
        return None, expired

    def started(self, batch: Batch, now: float) -> None:
        self._running[batch] = self._free_at(batch.lane, now) + batch.predicted

    def finished(self, batch: Batch, seconds: float) -> None:
        """A batch took so many seconds, the hand-over to its stream included: recalibrate its latency model, and give
        the lanes with queued tasks their credit."""
        del self._running[batch]
        batch.latency_model.observe(len(batch.tasks), batch.tokens, seconds)
        used = seconds * (self._streams if batch.wide else 1)
        for path, credit in self._credit.items():
            own = used if path is batch.lane else 0.0
            if own or self._queues[path].size:
                # Bounded below, so that a busy hour without other work costs no more than one batch.
                self._credit[path] = max(-self._bulk_batch_seconds, credit + FAIR_SHARE[path] * used - own)

    @property
    def backlog(self) -> float:
        """Device time of all queued tasks."""
        return sum([queue.backlog for queue in self._queues.values()])

    @property
    def starved(self) -> bool:
        """Whether interactive lanes have so little queued that it is done before a call that is read now is queued."""
        queues = [self._queues[path] for path in INTERACTIVE if path in self._queues]
        return bool(queues) and sum([queue.backlog for queue in queues]) <= STARVED_SECONDS * self._streams

    def queue_depth(self, path: ServingPath) -> int:
        return self._queues[path].size

    def idle(self, now: float) -> bool:
        """Whether only deferred work is queued and no interactive request came within the last second."""
        quiet = now - max(self._last_interactive.values()) >= INTERACTIVE_SECONDS
        return quiet and not any(queue.size for path, queue in self._queues.items() if path is not ServingPath.DEFERRED)

    @property
    def busy(self) -> bool:
        """Whether any task is queued: a new one will not start at once."""
        return any(queue.size for queue in self._queues.values())

    def _has_free_stream(self) -> bool:
        most = self._streams + self._beside
        return len(self._running) < most and not any(batch.wide for batch in self._running)

    def _free_streams(self, path: ServingPath) -> int:
        """Streams on which a batch of this lane may run now, unless a wide one runs."""
        if not self._beside:
            return self._streams - len(self._running)
        return (self._beside if path in BULK else self._streams) - len(self._in_the_way(path))

    def _longest(self, path: ServingPath, now: float) -> float:
        """The longest text that may start now, in seconds by itself on an undisturbed machine: those beyond leave a
        stream to the interactive lanes above."""
        above = (self._last_interactive.get(queue.lane.path, -math.inf) for queue in self._ahead[path])
        if self._streams == 1 or max(above, default=-math.inf) <= now - INTERACTIVE_SECONDS:
            return math.inf
        long = sum(batch.tasks[0].undisturbed > self._bulk_batch_seconds for batch in self._running)
        return math.inf if long < self._streams - 1 else self._bulk_batch_seconds

    def _in_the_way(self, path: ServingPath) -> list[float]:
        """When the batches end that run on the streams of this lane, or on all."""
        return [end for batch, end in self._running.items() if batch.wide or self._shares(path, batch.lane)]

    def _shares(self, one: ServingPath, other: ServingPath) -> bool:
        """Whether batches of two lanes run on the same streams."""
        return not self._beside or (one in BULK) == (other in BULK)

    def _free_at(self, path: ServingPath, now: float) -> float:
        """When a stream is free for one more batch of this lane."""
        if self._has_free_stream() and self._free_streams(path):
            return now
        # If a batch overruns its prediction, its remaining time is taken to be the overrun so far. The prediction for a
        # device that hangs so keeps growing, and admission control rejects new requests.
        ends = sorted(now + abs(end - now) for end in self._in_the_way(path))
        return ends[max(0, len(ends) - self._streams)]

    def _taken_ahead(self, now: float) -> Batch | None:
        if not self.busy or len(self._running) >= self._most_running or any(it.wide for it in self._running):
            return None
        queue = next(it for it in self._queues.values() if it.size)
        begin = self._free_at(queue.lane.path, now)
        # A lane with credit goes first once a stream is free.
        if not queue.lane.of_singles or begin - now > self._bulk_batch_seconds or self._lanes_with_credit():
            return None
        leader = queue.heads()[0]
        if leader.seconds > self._bulk_batch_seconds or begin + leader.seconds > _deadline(leader):
            return None
        batch = _next_of(queue, 1, begin, math.inf, [])
        return batch and replace(batch, ahead=True)

    def _lanes_with_credit(self) -> list[ServingPath]:
        """Lanes whose credit covers the time of their next text, lowest first."""
        return [
            path
            for path, credit in reversed(self._credit.items())
            if credit > 0.0 and any(credit >= head.seconds for head in self._queues[path].heads()[:1])
        ]

    def _widened(self, batch: Batch, now: float) -> Batch:
        """The same batch on all cores, if it is a single text that came alone, and faster so, or to be tried. Where
        several calls are under way, the cores do more with a text each."""
        wide, task = batch.tasks[0].latency.wide, batch.tasks[0]
        if wide is None or batch.tasks != (self._came_alone,):
            return batch
        predicted = wide.predict(1, batch.tokens)
        if predicted >= batch.predicted:
            self._since_wide += 1
            # Infinity, of widths that no graph of all cores has, is never in time.
            if self._since_wide < WIDE_TRIED_EVERY or now + predicted >= _deadline(task):
                return batch
        self._since_wide = 0
        return replace(batch, wide=True, predicted=predicted)

    def _batching_delay(self, path: ServingPath, now: float) -> float:
        """Seconds that the queued tasks of a lane wait for batch mates: at least a batch of a lower lane, else 0."""
        queue = self._queues[path]
        if not queue.lane.max_delay or not any(it.size for it in self._below[path]):
            return 0.0
        leader = queue.heads()[0]
        if queue.size >= queue.lane.rows(leader.tokens):
            return 0.0
        due, latency_model = queue.due(leader), leader.latency.narrow
        latest = due - latency_model.predict(queue.size + 1, leader.tokens) - latency_model.margin
        longest = min(queue.lane.max_delay, BATCHING_DELAY_SHARE * (due - leader.arrived))
        delay = min(latest, leader.arrived + longest) - now
        return delay if delay >= self._bulk_batch_seconds else 0.0


def latest_finish(arrived: float, deadline: float) -> float:
    """The latest predicted finish with which a request is admitted."""
    return deadline - min((1 - ADMITTED_SHARE) * (deadline - arrived), ADMITTED_MARGIN)


def ready_by(arrived: float, deadline: float) -> float:
    """When an answer has to be ready to reach its caller by the deadline."""
    return deadline - min(DELIVERY_SHARE * (deadline - arrived), DELIVERY_SECONDS)


def _next_of(
    queue: Queue, free: int, now: float, limit: float, expired: list[Task], longest: float = math.inf
) -> Batch | None:
    """Take the most urgent task that can still finish in time, and its batch mates; tasks before it go to `expired`.
    Tasks that take more than `longest` seconds undisturbed stay.

    As many batch mates as finish within `limit`, in time for another kind and by each of their own deadlines; the batch
    has one of the sizes that its engine is warmed for. Single texts share one if more wait than streams are `free`.
    """
    while heads := [head for head in queue.heads() if longest == math.inf or head.undisturbed <= longest]:
        leader, *others = heads
        if now + leader.seconds > _deadline(leader):
            queue.take(leader)
            expired.append(leader)
            continue
        end = min(now + limit, _latest_end(leader, others, now))
        most = queue.lane.rows(leader.tokens)
        if queue.lane.of_singles:
            most = min(most, -(-queue.size // free))
        batch_mates = queue.batch_mates(leader, most)
        tasks = tuple(batch_mates[: _rows(batch_mates, end, now)])
        for task in tasks:
            queue.serve(task)
        predicted = leader.latency.narrow.predict(len(tasks), leader.tokens)
        return Batch(queue.lane.path, tasks, leader.tokens, predicted)
    return None


def _rows(batch_mates: Sequence[Task], end: float, now: float) -> int:
    """How many of these tasks the batch takes."""
    if len(batch_mates) == 1:
        return 1
    leader = batch_mates[0]
    rows, end = 1, min(end, _deadline(leader))
    for count in range(2, len(batch_mates) + 1):
        end = min(end, _deadline(batch_mates[count - 1]))
        if now + leader.latency.narrow.predict(count, leader.tokens) > end:
            break
        rows = count
    return leader.latency.rows_below(rows, leader.tokens)


def _latest_end(leader: Task, others: Sequence[Task], now: float) -> float:
    """When a batch must end for the most urgent task of another kind to be in time; never, if it cannot be."""
    if not others:
        return math.inf
    latest = _deadline(others[0]) - others[0].seconds
    return latest if now + leader.seconds <= latest else math.inf


def _seconds(tasks: Sequence[Task]) -> float:
    """Device time of one request's texts, those of one padded width as one batch."""
    if len(tasks) == 1:
        return tasks[0].seconds
    predict = tasks[0].latency.narrow.predict
    return sum(predict(count, tokens) for tokens, count in Counter(task.tokens for task in tasks).items())


def _deadline(task: Task) -> float:
    return math.inf if task.deadline is None else ready_by(task.arrived, task.deadline)
