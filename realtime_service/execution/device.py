"""Runs a scheduler's units on real engines: a thread for each stream computes, the event loop never does."""

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
from realtime_service.execution.compute_threads import ComputeThreads
from realtime_service.models.registry import Model
from realtime_service.models.warmup import WarmVariant
from realtime_service.scheduling.latency_model import LatencyModel, Speeds
from realtime_service.scheduling.queue import Task
from realtime_service.scheduling.scheduler import Batch, Scheduler
from realtime_service.scheduling.utilisation import Utilisation
from realtime_service.settings import Lane
from shared_model.clock import Clock
from shared_model.encoding import Encoding, coarse_bucket, collate
from shared_model.engine import Engine
from shared_model.types import Precision, ServingPath

log = logging.getLogger(__name__)


class Computed(NamedTuple):
    """One text's result. `scores`: (width of the release's output,). Times in seconds."""

    scores: NDArray[np.float32]
    precision: Precision
    batch_rows: int
    queued: float
    computed: float


@dataclass(eq=False, slots=True)
class _Wait:
    """A request that waits for `left` of its texts. `over` is done when all are scored or one has failed: with what
    went wrong, which is nobody's unretrieved exception if the request is gone by then."""

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
    computed: Computed | None = None


class _Scored(NamedTuple):
    """What a stream found: scores (rows, width), and the seconds it took, collating included."""

    scores: NDArray[np.float32]
    seconds: float


class Device:
    """All lanes of this process that run on one device, whatever releases they serve. `quiet` is set while no unit
    runs; other threads may wait for it."""

    def __init__(self, lanes: Mapping[ServingPath, Lane], streams: int, unit_seconds: float, clock: Clock) -> None:
        self.lanes = lanes
        self.load = Utilisation(lanes, streams)
        self.scheduler = Scheduler(lanes, streams, unit_seconds)
        self.quiet = threading.Event()
        self.quiet.set()
        self._clock = clock
        self._streams = ComputeThreads(streams)
        self._units: set[Batch] = set()
        self._unit_ended = asyncio.Event()

    async def compute(
        self,
        model: Model,
        path: ServingPath,
        encodings: Sequence[Encoding],
        arrived: float,
        deadline: float | None,
        real_time: bool = False,
        finish_in: float | None = None,
    ) -> list[Computed]:
        """Score one request's texts: all or none, on one model, which the caller holds. `real_time`: before all others
        of its lane. `finish_in`: what `finish_of` has just predicted, None where it was not asked.

        Raises: Overloaded, ReplicaUnavailable before any work is spent; DeadlineExpired; ScoringFailed.
        """
        loop = asyncio.get_running_loop()
        wait = _Wait(loop.create_future(), len(encodings))
        speeds = self._speeds(model, path)
        jobs = [_Job(path, it, speeds, arrived, deadline, real_time, model=model, wait=wait) for it in encodings]
        self.load.arrived(path, sum(map(self._work, jobs)), arrived)
        now = self._clock.monotonic()
        self.scheduler.admit(jobs, now, None if finish_in is None else now + finish_in)
        self._start_what_can_run()
        # One future and one bare timer, however many texts: every request pays for them.
        timer = None if deadline is None else loop.call_later(deadline - self._clock.monotonic(), wait.expire)
        try:
            failure = await wait.over
        finally:
            if timer:
                timer.cancel()
            # Whatever ended the wait: what has not started must not run any more.
            for job in jobs:
                self.scheduler.withdraw(job)
        if failure:
            raise failure
        return [job.computed for job in jobs if job.computed]

    def finish_of(
        self, model: Model, path: ServingPath, encodings: Sequence[Encoding], real_time: bool
    ) -> float | None:
        """Seconds until a request of these texts would be answered if admitted now; None where its lane is not here, or
        still warms up."""
        lane = self.lanes.get(path)
        variant = model.engines.get(lane.precision) if lane else None
        if lane is None or variant is None:
            return None
        now, predict = self._clock.monotonic(), variant.speeds_of(lane).narrow.predict
        widths = Counter(coarse_bucket(encoding.tokens) for encoding in encodings)
        seconds = sum(predict(count, tokens) for tokens, count in widths.items())
        return self.scheduler.predicted_finish(path, seconds, now, real_time) - now

    def typical(self, model: Model, path: ServingPath, tokens: int) -> tuple[float, float, float] | None:
        """For a text of `tokens` tokens: seconds until it would be answered, the same if it is real-time, and of device
        time that one more adds where the lane batches as much as it may. None as in `finish_of`."""
        lane = self.lanes[path]
        variant = model.engines.get(lane.precision)
        if variant is None:
            return None
        now, profile = self._clock.monotonic(), variant.speeds_of(lane).narrow
        seconds, predict = profile.predict(1, tokens), self.scheduler.predicted_finish
        per_text = _share(lane, profile, coarse_bucket(tokens)) / self.load.streams
        return predict(path, seconds, now) - now, predict(path, seconds, now, real_time=True) - now, per_text

    def load_of(self, path: ServingPath) -> float:
        """ρ of a lane now; 1 is all that the device can do."""
        return self.load.of(path, self._clock.monotonic())

    async def settled(self) -> None:
        """Wait until what runs now has ended, even if nobody waits for its answer any more."""
        left = set(self._units)
        while left & self._units:
            self._unit_ended.clear()
            await self._unit_ended.wait()

    def close(self) -> None:
        self._streams.close()

    def _speeds(self, model: Model, path: ServingPath) -> Speeds:
        """Raises: ReplicaUnavailable where the lane cannot run the model."""
        lane = self.lanes.get(path)
        variant = model.engines.get(lane.precision) if lane else None
        if lane is None or variant is None:
            raise ReplicaUnavailable(f"the {path} lane is not here, or still warming up")
        return variant.speeds_of(lane)

    def _work(self, job: _Job) -> float:
        return _share(self.lanes[job.lane], job.speeds.narrow, job.tokens)

    def _start_what_can_run(self) -> None:
        """Called whenever work has come or a stream is free again."""
        while True:
            now = self._clock.monotonic()
            unit, dead = self.scheduler.next_unit(now)
            for task in dead:
                if isinstance(task, _Job):
                    task.wait.end(DeadlineExpired("the deadline could not be met any more when the device was free"))
            if unit:
                self._start(unit, now)
            elif not dead:
                return

    def _start(self, unit: Batch, now: float) -> None:
        self.scheduler.started(unit, now)
        self._units.add(unit)
        self.quiet.clear()
        jobs = [task for task in unit.tasks if isinstance(task, _Job)]
        engine = _engine(jobs[0].model.engines[self.lanes[unit.lane].precision], unit)
        self._streams.submit(
            functools.partial(_score, jobs, engine, self.lanes[unit.lane].max_rows == 1),
            functools.partial(self._ended, unit, jobs, engine.precision, now),
        )

    def _ended(
        self, unit: Batch, jobs: Sequence[_Job], compiled: Precision, started: float, found: _Scored | Exception
    ) -> None:
        self._units.remove(unit)
        self._unit_ended.set()
        if not self._units:
            self.quiet.set()
        self.scheduler.finished(unit, self._clock.monotonic() - started)
        # First of all the stream gets its next unit; answers are a matter of this thread alone.
        self._start_what_can_run()
        if isinstance(found, Exception):
            # An engine may raise anything; the batch fails, the device lives.
            log.error("a %s batch of %d failed on %s", unit.lane, len(jobs), jobs[0].model.release, exc_info=found)
            for job in jobs:
                job.wait.end(ScoringFailed("the engine failed on this batch"))
            return
        jobs[0].model.statistics.add_batch(len(jobs), found.seconds)
        for job, row in zip(jobs, found.scores, strict=True):
            job.computed = Computed(row, compiled, len(jobs), started - job.arrived, found.seconds)
            job.wait.end_one()


def _share(lane: Lane, profile: LatencyModel, tokens: int) -> float:
    """Seconds a text takes of one stream where its lane batches as much as it may."""
    rows = max(1, min(lane.max_rows, lane.token_budget // tokens))
    return profile.predict(rows, tokens) / rows


def _engine(variant: WarmVariant, unit: Batch) -> Engine:
    return variant.wide if unit.wide and variant.wide else variant.narrow


def _score(jobs: Sequence[_Job], engine: Engine, single: bool) -> _Scored:
    """On a stream. `single`: the lane never makes batches."""
    started = time.perf_counter()
    model = jobs[0].model
    encodings = [job.encoding for job in jobs]
    raw = engine.score(collate(encodings), single)
    return _Scored(model.output.scores(raw), time.perf_counter() - started)
