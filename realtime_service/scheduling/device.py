"""Runs a scheduler's units on real engines: one worker thread computes, the event loop never does."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from realtime_service.errors import DeadlineExpired, ScoringFailed
from realtime_service.scheduling.scheduler import Limits, Scheduler, Task, Unit
from realtime_service.settings import Lane
from realtime_service.warmup import WarmEngine
from shared_model.clock import Clock
from shared_model.encoding import Encoding, collate
from shared_model.engine import Engine, probabilities
from shared_model.types import Precision, ServingPath

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Computed:
    """One text's result. `scores`: probabilities (labels,). Times in seconds."""

    scores: NDArray[np.float32]
    precision: Precision
    batch_rows: int
    queued: float
    computed: float


@dataclass(eq=False, slots=True)
class _Job(Task):
    future: "asyncio.Future[Computed] | None" = None


class Device:
    """All lanes of this process, on one device. `run` must be running for `compute` to end."""

    def __init__(
        self,
        lanes: Mapping[ServingPath, Lane],
        engines: Mapping[Precision, WarmEngine],
        limits: Limits,
        clock: Clock,
    ) -> None:
        self.lanes = lanes
        self.scheduler = Scheduler(lanes, {precision: warm.profile for precision, warm in engines.items()}, limits)
        self._engines = {precision: warm.engine for precision, warm in engines.items()}
        self._clock = clock
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="device")
        self.running: dict[ServingPath, int] = dict.fromkeys(lanes, 0)

    async def compute(
        self, lane: ServingPath, encodings: Sequence[Encoding], arrived: float, deadline: float | None
    ) -> list[Computed]:
        """Score one request's texts: all or none.

        Raises: Overloaded before any work is spent; DeadlineExpired; ScoringFailed.
        """
        loop = asyncio.get_running_loop()
        jobs = [_Job(lane, encoding, arrived, deadline, future=loop.create_future()) for encoding in encodings]
        self.scheduler.admit(jobs, self._clock.monotonic())
        self._arrived.set()
        left = None if deadline is None else deadline - self._clock.monotonic()
        try:
            async with asyncio.timeout(left):
                return [await job.future for job in jobs if job.future]
        except TimeoutError:
            raise DeadlineExpired("the deadline passed before the answer was there") from None
        finally:
            # Whatever ended the wait: what has not started must not run any more.
            for job in jobs:
                self.scheduler.withdraw(job)
                if job.future and not job.future.done():
                    job.future.cancel()
                elif job.future and not job.future.cancelled():
                    job.future.exception()

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

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    async def _run_unit(self, unit: Unit) -> None:
        started = self._clock.monotonic()
        self.scheduler.started(unit, started)
        self.running[unit.lane] = len(unit.tasks)
        loop = asyncio.get_running_loop()
        try:
            scores, seconds = await loop.run_in_executor(self._thread, _score, self._engines[unit.precision], unit)
        except Exception:
            # An engine may raise anything; the batch fails, the device lives.
            log.exception("a %s batch of %d failed", unit.lane, len(unit.tasks))
            for task in unit.tasks:
                _end(task, ScoringFailed("the engine failed on this batch"))
            self.scheduler.finished(unit, self._clock.monotonic(), unit.predicted)
            return
        finally:
            self.running[unit.lane] = 0
        self.scheduler.finished(unit, self._clock.monotonic(), seconds)
        compiled = self._engines[unit.precision].precision
        for task, row in zip(unit.tasks, scores, strict=True):
            _end(task, Computed(row, compiled, len(unit.tasks), started - task.arrived, seconds))


def _score(engine: Engine, unit: Unit) -> tuple[NDArray[np.float32], float]:
    """In the worker thread: probabilities (rows, labels) and the seconds it took, collating included."""
    started = time.perf_counter()
    scores = probabilities(engine.score(collate([task.encoding for task in unit.tasks])))
    return scores, time.perf_counter() - started


def _end(task: Task, outcome: Computed | Exception) -> None:
    future = task.future if isinstance(task, _Job) else None
    if future is None or future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
