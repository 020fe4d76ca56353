"""Runs a scheduler's batches on engines: one thread per stream computes; the event loop itself runs short batches that
need all cores of the process, because two hand-overs take a tenth of their time."""

import asyncio
import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from realtime_service.errors import DeadlineExpired, ReplicaUnavailable, ScoringFailed
from realtime_service.execution.compute_threads import ComputeThreads, run_soon
from realtime_service.models.registry import Model
from realtime_service.models.warmup import WarmVariant
from realtime_service.scheduling.batch import Batch
from realtime_service.scheduling.calls_under_way import CallsUnderWay
from realtime_service.scheduling.latency_model import VariantLatency
from realtime_service.scheduling.queue import Task
from realtime_service.scheduling.scheduler import BULK, Scheduler
from realtime_service.scheduling.utilisation import Utilisation
from realtime_service.settings import Lane
from realtime_service.telemetry import batches
from realtime_service.telemetry.batches import QueuedWork, RanBatch
from shared_model import tracing
from shared_model.clock import Clock
from shared_model.encoding import Encoding, coarse_bucket, collate
from shared_model.engine import Engine
from shared_model.types import Precision, ServingPath

#: The event loop itself runs batches that are predicted to take so long, while no more work than this waits: the more
#: calls come, the more it has to refuse at once.
ON_LOOP_SECONDS, ON_LOOP_WAITING = 0.003, 0.020

#: Batches that wait for a stream of several: more do not answer more texts.
AHEAD = 1

log = logging.getLogger(__name__)


class Computed(NamedTuple):
    """One text's result. `scores`: (width of all heads,). Times in seconds."""

    scores: NDArray[np.float32]
    precision: Precision
    batch_rows: int
    queued: float
    computed: float


@dataclass(slots=True)
class Ran:
    """The batches of a lane that have ended: seconds of the device, tokens of texts, and those that padded them."""

    seconds: float = 0.0
    tokens: int = 0
    padding: int = 0


@dataclass(eq=False, slots=True)
class _Wait:
    """A request that waits for `left` of its texts. `over` is done when all are scored, with None, or one has failed,
    with the failure: as a result, because an exception that no caller retrieves is logged."""

    over: "asyncio.Future[Exception | None]"
    left: int

    def end_one(self) -> None:
        self.left -= 1
        if not self.left:
            self.end(None)

    def end(self, failure: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(failure)

    def expire(self) -> None:
        self.end(DeadlineExpired("the deadline passed before the answer was there"))


@dataclass(eq=False, slots=True, kw_only=True)
class _Job(Task):
    model: Model
    wait: _Wait
    trace: QueuedWork | None = None
    computed: Computed | None = None


class _Scored(NamedTuple):
    """The result of a batch: scores (rows, width), and the seconds it took, collating included, since `began`, in
    nanoseconds since 1970. `size`: its tokens, padding included."""

    scores: NDArray[np.float32]
    seconds: float
    began: int
    size: int


class Device:
    """The lanes of this process that run on one device, of all releases. `quiet` is set while no batch runs; other
    threads may wait for it. `on_loop`: the event loop may run short batches. `beside`: as in `Scheduler`. `calls`: of
    the process, that of the texts included; None: they are not known, and the queues tell all."""

    def __init__(
        self,
        lanes: Mapping[ServingPath, Lane],
        streams: int,
        bulk_batch_seconds: float,
        clock: Clock,
        on_loop: bool = False,
        beside: int = 0,
        calls: CallsUnderWay | None = None,
    ) -> None:
        self.lanes = lanes
        self.utilisation = Utilisation(lanes, streams)
        # The loop, which several streams share, may be late with their next batch. That of one stream may be the loop.
        self.scheduler = Scheduler(lanes, streams, bulk_batch_seconds, AHEAD if streams > 1 else 0, beside)
        self.quiet = threading.Event()
        self.quiet.set()
        self._clock = clock
        self._on_loop = on_loop
        self._calls = calls or CallsUnderWay()
        self._streams = ComputeThreads(streams + beside)
        self._batches: set[Batch] = set()
        self._batch_ended = asyncio.Event()
        self._ran = {path: Ran() for path in lanes}
        #: Lanes whose time was asked for, and lanes that ran a batch, since `take_asked_in_vain`.
        self._asked, self._served = set[ServingPath](), set[ServingPath]()

    async def compute(
        self,
        model: Model,
        path: ServingPath,
        encodings: Sequence[Encoding],
        arrived: float,
        deadline: float | None,
        real_time: bool = False,
        finish_in: float | None = None,
        caller: str = "",
    ) -> list[Computed]:
        """Score one request's texts, all or none, on one model, which the caller has leased. `real_time`: before all
        others of its lane. `finish_in`: the prediction of `finish_of`, where it was asked a moment ago. `caller`: by
        whom fair shares are counted.

        Raises: Overloaded, ReplicaUnavailable before any work is spent; DeadlineExpired; ScoringFailed.
        """
        wait = _Wait(asyncio.get_running_loop().create_future(), len(encodings))
        latency = self._latency(model, path)
        if latency is None:
            raise ReplicaUnavailable(f"the {path} lane is not here, or still warming up")
        work = tracing.current()
        trace = None if work is None else QueuedWork(work, time.time_ns())
        jobs = [
            _Job(path, it, latency, arrived, deadline, real_time, caller, model=model, wait=wait, trace=trace)
            for it in encodings
        ]
        lane = self.lanes[path]
        seconds = sum([latency.share(lane.rows(job.tokens), job.tokens) for job in jobs])
        self.utilisation.arrived(path, seconds, arrived)
        now = self._clock.monotonic()
        finish = None if finish_in is None else now + finish_in
        self.scheduler.admit(jobs, now, finish, alone=self._calls.count <= 1)
        self._start_what_can_run()
        try:
            await self._over(wait, deadline)
        finally:
            # However the wait ended, tasks that have not started must not run.
            for job in jobs:
                self.scheduler.withdraw(job)
        return [job.computed for job in jobs if job.computed]

    def finish_of(
        self,
        model: Model,
        path: ServingPath,
        tokens: Sequence[int],
        real_time: bool,
        caller: str = "",
        at_least: bool = False,
    ) -> float | None:
        """Seconds until a request would be answered if admitted now; None if its lane is not served here, or still
        warms up. `tokens`: of each text, or (`at_least`) the fewest that each may have: no such request is answered
        sooner."""
        latency = self._latency(model, path)
        if latency is None:
            return None
        self._asked.add(path)
        now = self._clock.monotonic()
        if at_least:
            # As one batch, however their widths would divide them.
            seconds = latency.narrow.at_least(len(tokens), sum(map(coarse_bucket, tokens)) / len(tokens))
        else:
            seconds = _alone(latency, tokens)
        return self.scheduler.predicted_finish(path, seconds, now, real_time, caller) - now

    def alone(self, model: Model, path: ServingPath, tokens: Sequence[int]) -> float:
        """The seconds in `finish_of` that the texts themselves take; 0 where it knows no time."""
        latency = self._latency(model, path)
        return _alone(latency, tokens) if latency else 0.0

    def typical(self, model: Model, path: ServingPath, tokens: int) -> tuple[float, float, float] | None:
        """For a text of `tokens` tokens: seconds until it would be answered, the same for a real-time one, and the
        device time that one more adds to a full batch. None as in `finish_of`."""
        latency = self._latency(model, path)
        if latency is None:
            return None
        now, seconds = self._clock.monotonic(), latency.narrow.predict(1, tokens)
        finish = self.scheduler.predicted_finish(path, seconds, now)
        urgent = self.scheduler.predicted_finish(path, seconds, now, real_time=True)
        return finish - now, urgent - now, self.per_text(model, path, tokens)

    def per_text(self, model: Model, path: ServingPath, tokens: int = 1) -> float:
        """The device time in seconds that one more text adds to a full batch; 0 where `finish_of` knows no time."""
        latency, width = self._latency(model, path), coarse_bucket(tokens)
        return latency.share(self.lanes[path].rows(width), width) / self.utilisation.streams if latency else 0.0

    def utilisation_of(self, path: ServingPath) -> float:
        """ρ of a lane now; 1 is the capacity of the device."""
        return self.utilisation.of(path, self._clock.monotonic())

    def take_ran(self, path: ServingPath) -> Ran:
        """The batches of a lane since the last call."""
        ran, self._ran[path] = self._ran[path], Ran()
        return ran

    def take_asked_in_vain(self, path: ServingPath) -> bool:
        """Whether requests asked for the time of a lane since the last call, and none of its batches began."""
        in_vain = path in self._asked and path not in self._served
        self._asked.discard(path)
        self._served.discard(path)
        return in_vain

    async def settled(self) -> None:
        """Wait until the batches that run now have ended, also those whose callers have left."""
        left = set(self._batches)
        while left & self._batches:
            self._batch_ended.clear()
            await self._batch_ended.wait()

    def close(self) -> None:
        self._streams.close()

    async def _over(self, wait: _Wait, deadline: float | None) -> None:
        """Wait for the end of a request. Raises: its failure."""
        # One future and one timer per request, not per text: every request pays for them.
        left = None if deadline is None else deadline - self._clock.monotonic()
        timer = None if left is None else asyncio.get_running_loop().call_later(left, wait.expire)
        try:
            failure = await wait.over
        finally:
            if timer:
                timer.cancel()
        if failure:
            raise failure

    def _latency(self, model: Model, path: ServingPath) -> VariantLatency | None:
        """None if the lane is not served here, or still warms up."""
        lane = self.lanes.get(path)
        variant = model.engines.get(lane.precision) if lane else None
        return variant.latency_of(lane) if lane and variant else None

    def _start_what_can_run(self) -> None:
        """Called after every arrival and every end of a batch."""
        while True:
            now = self._clock.monotonic()
            batch, expired = self.scheduler.next_batch(now)
            for task in expired:
                if isinstance(task, _Job):
                    task.wait.end(DeadlineExpired("the deadline could not be met any more when the device was free"))
            if batch:
                self._start(batch, now)
            elif not expired:
                return

    def _start(self, batch: Batch, now: float) -> None:
        self.scheduler.started(batch, now)
        self._batches.add(batch)
        self._served.add(batch.lane)
        self.quiet.clear()
        jobs = [task for task in batch.tasks if isinstance(task, _Job)]
        engine = _engine(jobs[0].model.engines[self.lanes[batch.lane].precision], batch)
        submit = run_soon if self._runs_on_loop(batch) else self._streams.submit
        submit(
            functools.partial(_score, jobs, engine, self.lanes[batch.lane].of_singles),
            functools.partial(self._ended, batch, jobs, engine.precision, now),
        )

    def _runs_on_loop(self, batch: Batch) -> bool:
        """Only a batch that keeps all cores of the process busy: no other could begin meanwhile."""
        alone = self._on_loop and (batch.wide or self._streams.count == 1)
        return alone and batch.predicted <= ON_LOOP_SECONDS and self.scheduler.backlog <= ON_LOOP_WAITING

    def _ended(
        self, batch: Batch, jobs: Sequence[_Job], compiled: Precision, started: float, found: _Scored | Exception
    ) -> None:
        self._batches.remove(batch)
        self._batch_ended.set()
        if not self._batches:
            self.quiet.set()
        seconds = self._clock.monotonic() - started
        if batch.ahead and isinstance(found, _Scored):
            # It began when a stream was free for it.
            started, seconds = started + seconds - found.seconds, found.seconds
        self.scheduler.finished(batch, seconds)
        # The stream gets its next batch first: answers need only this thread.
        self._start_what_can_run()
        if traced := [job.trace for job in jobs if job.trace is not None]:
            batches.note(_ran(batch, jobs[0].model.release, compiled, seconds, found), traced, found)
        if isinstance(found, Exception):
            # An engine may raise anything: the batch fails, and the device goes on.
            log.error("a %s batch of %d failed on %s", batch.lane, len(jobs), jobs[0].model.release, exc_info=found)
            for job in jobs:
                job.wait.end(ScoringFailed("the engine failed on this batch"))
            return
        jobs[0].model.statistics.add_batch(len(jobs), found.seconds)
        ran = self._ran[batch.lane]
        ran.seconds += found.seconds * (1 if batch.wide else 1 / self._streams.count)
        tokens = sum([job.encoding.tokens for job in jobs])
        ran.tokens += tokens
        ran.padding += found.size - tokens
        for job, row in zip(jobs, found.scores, strict=True):
            job.computed = Computed(row, compiled, len(jobs), started - job.arrived, found.seconds)
            job.wait.end_one()


def _ran(batch: Batch, release: str, precision: Precision, seconds: float, found: _Scored | Exception) -> RanBatch:
    ended, engine = time.time_ns(), (0, 0.0)
    rows, began = len(batch.tasks), ended - round(seconds * 1e9)
    if isinstance(found, _Scored):
        # The loop hears of a batch's end late, so what it reckons back may lie behind the engine's start.
        began, engine = min(began, found.began), (found.began, found.seconds)
    return RanBatch(batch.lane, release, precision, rows, rows * batch.tokens, began, ended, *engine)


def _alone(latency: VariantLatency, tokens: Sequence[int]) -> float:
    """The predicted time of texts by themselves, in batches of one padded width. `tokens`: of each."""
    if len(tokens) == 1:
        return latency.narrow.predict(1, coarse_bucket(tokens[0]))
    widths = Counter(map(coarse_bucket, tokens))
    return sum(latency.narrow.predict(count, width) for width, count in widths.items())


def _engine(variant: WarmVariant, batch: Batch) -> Engine:
    if variant.bulk and batch.lane in BULK:
        return variant.bulk.engine
    return variant.wide if batch.wide and variant.wide else variant.narrow


def _score(jobs: Sequence[_Job], engine: Engine, single: bool) -> _Scored:
    """Runs on a stream. `single`: as in `Engine.score`."""
    began, started = time.time_ns(), time.perf_counter()
    model = jobs[0].model
    batch = collate([job.encoding for job in jobs])
    raw = engine.score(batch, single)
    return _Scored(model.heads.scores(raw), time.perf_counter() - started, began, batch.ids.size)
