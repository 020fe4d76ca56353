"""Serves the releases that the pointer names: canary check, load, switch, retire. One release at a time.

A replaced release stays loaded for a while, so that a rollback is only a switch.
"""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from realtime_service.errors import Unfit, UnfitRelease
from realtime_service.metrics import Metrics
from realtime_service.models.latency_budgets import newly_slow
from realtime_service.models.registry import Model, Models, Serving
from realtime_service.rollout.desired_release import DesiredReleases
from realtime_service.rollout.loader import Loader
from shared_model.clock import Clock
from shared_model.errors import ReleaseError
from shared_model.releases.pointer import Pointer

PERIOD_SECONDS = 0.1

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """The releases that answer from now on, the one to load next, and the one to keep loaded without answering ("" for
    no release). All other loaded releases retire."""

    active: str
    canary: str
    weight: float
    load: str
    keep: str = ""


@dataclass(frozen=True)
class Failure:
    """The reason why a release is not served. Each new `version` of the pointer tries again."""

    version: int
    how: Unfit
    why: str


def plan(
    pointer: Pointer, loaded: Collection[str], active: str, failed: Collection[str], expired: Collection[str] = ()
) -> Step:
    """The next step towards `pointer`. `active`: the release that answers here; `expired`: releases that were kept for
    long enough.

    A release takes traffic only once it is loaded, and the one that answers stays until another replaces it. The
    release that a rollback would return to is kept, but retires before another one is loaded.
    """
    now = pointer.active if pointer.active in loaded else active
    canary = pointer.canary if pointer.canary in loaded and pointer.canary != now else ""
    missing = [it for it in (pointer.active, pointer.canary) if it and it not in loaded and it not in failed]
    previous = pointer.previous
    kept = previous in loaded and previous not in (now, canary, *expired) and not missing
    weight = pointer.weight if canary else 0.0
    return Step(now, canary, weight, missing[0] if missing else "", previous if kept else "")


class Rollout:
    """`failures`: by release, for the newest pointer. `loading`: the release that is being loaded, or "". `version`: of
    the last followed pointer, 0 before the first. `keep_seconds`: how long a replaced release stays loaded."""

    def __init__(
        self,
        models: Models,
        desired: DesiredReleases,
        loader: Loader,
        metrics: Metrics,
        clock: Clock,
        keep_seconds: float,
    ) -> None:
        self.failures: dict[str, Failure] = {}
        self.loading = ""
        self.version = 0
        self._models = models
        self._desired = desired
        self._loader = loader
        self._metrics = metrics
        self._clock = clock
        self._keep_seconds = keep_seconds
        self._kept_since = 0.0
        self._load: asyncio.Task[Model] | None = None
        self._ending: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Follow the pointer until cancelled."""
        try:
            while True:
                await self.run_once()
                await asyncio.sleep(PERIOD_SECONDS)
        finally:
            for task in (self._load, *self._ending):
                if task:
                    task.cancel()

    async def run_once(self) -> None:
        """Read the pointer, collect a finished load, switch, start the next load. Never waits for a load."""
        pointer = await self._desired.newest()
        if pointer is None:
            return
        if any(failure.version != pointer.version for failure in self.failures.values()):
            self._set_failures(
                {it: failure for it, failure in self.failures.items() if failure.version == pointer.version}
            )
        loaded = self._models.loaded
        if model := self._finished_load(pointer):
            loaded[model.release] = model
        step = plan(pointer, loaded, self._models.serving.active, self.failures, self._expired(loaded))
        self._switch(step, loaded)
        if step.load != self.loading:
            if self._load:
                self._load.cancel()
                self._hold(self._load)
            self.loading = step.load
            self._load = asyncio.create_task(self._load_fit(step.load)) if step.load else None
        self.version = pointer.version

    async def _load_fit(self, release: str) -> Model:
        """Load a release. Raises: UnfitRelease also if a lane that meets its budget now would miss it; ReleaseError."""
        model = await self._loader.load(release)
        if slow := newly_slow(model.timings, self._models.active.timings):
            self._hold(asyncio.create_task(self._loader.retire(model)))
            why = "; ".join(f"{precision} {found}" for precision, found in slow.items())
            raise UnfitRelease(Unfit.SLOW, f"it is slow here, and {self._models.serving.active} is not: {why}")
        return model

    def _expired(self, loaded: Collection[str]) -> Collection[str]:
        """Releases that were kept for long enough."""
        if not self._keep_seconds:
            return loaded
        kept, rested = self._models.kept, self._clock.monotonic() - self._kept_since
        return (kept.release,) if kept and rested >= self._keep_seconds else ()

    def _finished_load(self, pointer: Pointer) -> Model | None:
        if self._load is None or not self._load.done():
            return None
        task, release = self._load, self.loading
        self._load, self.loading = None, ""
        try:
            return task.result()
        except asyncio.CancelledError:
            return None
        except UnfitRelease as error:
            failure = Failure(pointer.version, error.how, str(error))
        except ReleaseError as error:
            failure = Failure(pointer.version, Unfit.REFUSED, str(error))
        except Exception:
            # The replica goes on with the releases that it serves.
            log.exception("loading %s failed with an unexpected error", release)
            failure = Failure(pointer.version, Unfit.REFUSED, "loading it failed; the log has the details")
        log.error("release %s is not served, %s stays: %s", release, self._models.serving.active, failure.why)
        self._set_failures({**self.failures, release: failure})
        return None

    def _set_failures(self, failures: dict[str, Failure]) -> None:
        self.failures = failures
        self._metrics.set_failed((release, failure.how) for release, failure in failures.items())

    def _switch(self, step: Step, loaded: dict[str, Model]) -> None:
        """Apply a step to the loaded releases: serve some, keep one, retire the rest."""
        kept, self._models.kept = self._models.kept, loaded.pop(step.keep, None)
        if self._models.kept and self._models.kept is not kept:
            self._kept_since = self._clock.monotonic()
            log.info("release %s stays loaded for %g s: a rollback to it is at once", step.keep, self._keep_seconds)
        answering = {it: loaded.pop(it) for it in (step.active, step.canary) if it}
        serving = Serving(answering, step.active, step.canary, step.weight)
        before, self._models.serving = self._models.serving, serving
        for model in loaded.values():
            self._hold(asyncio.create_task(self._loader.retire(model)))
        if before == serving:
            return
        self._metrics.set_serving(step.active, step.canary, step.weight)
        beside = f", {step.canary} for {step.weight:.0%} of callers" if step.canary else ""
        log.info("release %s answers%s", step.active, beside)

    def _hold(self, task: "asyncio.Task[Any]") -> None:
        """Keep a reference to a task until it ends, and log its error."""

        def ended(task: "asyncio.Task[Any]") -> None:
            self._ending.discard(task)
            if not task.cancelled() and (error := task.exception()):
                log.error("taking a release out of service failed: %s", error)

        self._ending.add(task)
        task.add_done_callback(ended)


async def follow(models: Models, desired: DesiredReleases, metrics: Metrics) -> None:
    """For a process without lanes: follow the releases of the pointer without loading them, until cancelled."""
    while True:
        if pointer := await desired.newest():
            serving = Serving({}, pointer.active, pointer.canary, pointer.weight)
            if serving != models.serving:
                models.serving = serving
                metrics.set_serving(pointer.active, pointer.canary, pointer.weight)
        await asyncio.sleep(PERIOD_SECONDS)
