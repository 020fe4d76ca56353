"""Runs a scheduler's units on real engines: one worker thread computes, the event loop never does."""

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from realtime_service.errors import DeadlineExpired, ScoringFailed
from realtime_service.models import Model
from realtime_service.scheduling.queue import Task
from realtime_service.scheduling.scheduler import Limits, Scheduler, Unit
from realtime_service.settings import Lane
from shared_model.clock import Clock
from shared_model.encoding import Encoding, collate
from shared_model.types import Precision, ServingPath

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Computed:
    """One text's result. `scores`: (width of the release's output,). Times in seconds."""

    scores: NDArray[np.float32]
    precision: Precision
    batch_rows: int
    queued: float
    computed: float


@dataclass(eq=False, slots=True, kw_only=True)
class _Job(Task):
    model: Model
    future: "asyncio.Future[Computed]"


class Device:
    """All lanes of this process, on one device, whatever releases they serve. `run` must be running for `compute` to
    end. `quiet` is set while no unit runs; other threads may wait for it."""

    def __init__(self, lanes: Mapping[ServingPath, Lane], limits: Limits, clock: Clock) -> None:
        self.lanes = lanes
        self.scheduler = Scheduler(lanes, limits)
        self.running: dict[ServingPath, int] = dict.fromkeys(lanes, 0)
        self.quiet = threading.Event()
        self.quiet.set()
        self._clock = clock
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="device")

    async def compute(
        self, model: Model, path: ServingPath, encodings: Sequence[Encoding], arrived: float, deadline: float | None
    ) -> list[Computed]:
        """Score one request's texts: all or none, on one model, which the caller holds.

        Raises: Overloaded before any work is spent; DeadlineExpired; ScoringFailed.
        """
        jobs = [self._job(model, path, encoding, arrived, deadline) for encoding in encodings]
        self.scheduler.admit(jobs, self._clock.monotonic())
        self._arrived.set()
        left = None if deadline is None else deadline - self._clock.monotonic()
        try:
            async with asyncio.timeout(left):
                return [await job.future for job in jobs]
        except TimeoutError:
            raise DeadlineExpired("the deadline passed before the answer was there") from None
        finally:
            # Whatever ended the wait: what has not started must not run any more.
            for job in jobs:
                self.scheduler.withdraw(job)
                if not job.future.done():
                    job.future.cancel()
                elif not job.future.cancelled():
                    job.future.exception()

    def predicted_finish(self, model: Model, path: ServingPath, tokens: int) -> float:
        """Seconds until a text of `tokens` tokens would be answered if admitted now."""
        now = self._clock.monotonic()
        profile = model.engines[self.lanes[path].precision].profile
        return self.scheduler.predicted_finish(path, profile, {tokens: 1}, now) - now

    async def run(self) -> None:
        """Run units until cancelled."""
        while True:
            now = self._clock.monotonic()
            unit, dead = self.scheduler.next_unit(now)
            for task in dead:
                _end(task, DeadlineExpired("the deadline could not be met any more when the device was free"))
            if unit:
                await self._run_unit(unit)
            elif not dead:
                self._arrived.clear()
                await self._arrived.wait()

    async def settled(self) -> None:
        """Wait until what runs now has ended, even if nobody waits for its answer any more."""
        await asyncio.get_running_loop().run_in_executor(self._thread, lambda: None)

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    def _job(self, model: Model, path: ServingPath, encoding: Encoding, arrived: float, deadline: float | None) -> _Job:
        profile = model.engines[self.lanes[path].precision].profile
        future = asyncio.get_running_loop().create_future()
        return _Job(path, encoding, profile, arrived, deadline, model=model, future=future)

    async def _run_unit(self, unit: Unit) -> None:
        started = self._clock.monotonic()
        self.scheduler.started(unit, started)
        self.running[unit.lane] = len(unit.tasks)
        self.quiet.clear()
        loop = asyncio.get_running_loop()
        jobs = [task for task in unit.tasks if isinstance(task, _Job)]
        try:
            rows, seconds = await loop.run_in_executor(self._thread, _score, jobs, self.lanes[unit.lane].precision)
        except Exception:
            # An engine may raise anything; the batch fails, the device lives.
            log.exception("a %s batch of %d failed on %s", unit.lane, len(jobs), jobs[0].model.release)
            for job in jobs:
                _end(job, ScoringFailed("the engine failed on this batch"))
            self.scheduler.finished(unit, self._clock.monotonic(), unit.predicted)
            return
        finally:
            self.running[unit.lane] = 0
            self.quiet.set()
        self.scheduler.finished(unit, self._clock.monotonic(), seconds)
        compiled = jobs[0].model.engines[self.lanes[unit.lane].precision].engine.precision
        for job, row in zip(jobs, rows, strict=True):
            _end(job, Computed(row, compiled, len(jobs), started - job.arrived, seconds))


def _score(jobs: Sequence[_Job], precision: Precision) -> tuple[NDArray[np.float32], float]:
    """In the worker thread: scores (rows, width) and the seconds it took, collating included."""
    started = time.perf_counter()
    model = jobs[0].model
    raw = model.engines[precision].engine.score(collate([job.encoding for job in jobs]))
    return model.output.scores(raw), time.perf_counter() - started


def _end(task: Task, outcome: Computed | Exception) -> None:
    if not isinstance(task, _Job) or task.future.done():
        return
    if isinstance(outcome, Exception):
        task.future.set_exception(outcome)
    else:
        task.future.set_result(outcome)
