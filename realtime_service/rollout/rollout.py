"""Serves the releases that the pointers name: canary check, load, switch, retire. One release at a time.

A replaced release stays loaded for a while, so that a rollback is only a switch. Beside the default model, as many
others are loaded as memory allows.
"""

import asyncio
import logging
import math
from collections.abc import Collection, Mapping
from typing import Any

from realtime_service.errors import Unfit, UnfitRelease
from realtime_service.models.latency_budgets import newly_slow
from realtime_service.models.registry import Model, Models, Roles, Serving
from realtime_service.rollout.desired_release import DesiredReleases
from realtime_service.rollout.loader import Loader
from realtime_service.rollout.plan import Failure, Step, plan
from realtime_service.rollout.residency import ALL, Residency, Use
from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import Clock
from shared_model.errors import ReleaseError
from shared_model.releases.pointer import Pointer
from shared_model.releases.pointers import name_of, served

PERIOD_SECONDS = 0.1
#: A model that was loaded stays so long at least: those that asked for it come back when they were told to.
SETTLED_SECONDS = 3.0

log = logging.getLogger(__name__)


class Rollout:
    """`failures`: by release, for the newest pointers. `loading`: the release that is being loaded, or "". `versions`:
    of the last followed pointers by model, that of the default model under "". `keep_seconds`: how long a replaced
    release stays loaded."""

    def __init__(
        self,
        models: Models,
        desired: DesiredReleases,
        loader: Loader,
        metrics: Metrics,
        clock: Clock,
        keep_seconds: float,
        residency: Residency = ALL,
    ) -> None:
        self.failures: dict[str, Failure] = {}
        self.loading = ""
        self.versions: Mapping[str, int] = {}
        self.residency = residency
        self._models = models
        self._desired = desired
        self._loader = loader
        self._metrics = metrics
        self._clock = clock
        self._keep_seconds = keep_seconds
        self._kept_since: dict[str, float] = {}
        self._loaded_at: dict[str, float] = {}
        self._sizes: dict[str, int] = {}
        self._load: asyncio.Task[Model] | None = None
        self._ending: set[asyncio.Task[Any]] = set()

    @property
    def version(self) -> int:
        """Of the default model's pointer; 0 before the first."""
        return self.versions.get("", 0)

    async def run(self) -> None:
        """Follow the pointers until cancelled."""
        try:
            while True:
                await self.run_once()
                await asyncio.sleep(PERIOD_SECONDS)
        finally:
            for task in (self._load, *self._ending):
                if task:
                    task.cancel()

    async def run_once(self) -> None:
        """Read the pointers, collect a finished load, switch, start the next load. Never waits for a load."""
        default = await self._desired.newest()
        if default is None:
            return
        others = served(self._desired.others, default)
        pointers = {"": default, **others}
        sizes = await self._sizes_of({name: it for name, it in others.items() if self.residency.serves(name)})
        self._forget_failures(pointers)
        loaded = self._models.loaded
        if model := self._finished_load(pointers):
            loaded[model.release] = model
            self._loaded_at[name_of(model.release)] = self._clock.monotonic()
        resident = self.residency.loaded({name: self._use(name, size, loaded) for name, size in sizes.items()})
        self._models.on_demand = frozenset(sizes.keys() - resident)
        self._models.loads = frozenset(sizes.keys() - {failure.model for failure in self.failures.values()})
        expired = self._expired(loaded)
        steps = {
            name: plan(pointer, loaded, self._answering(name), self.failures, expired)
            for name, pointer in pointers.items()
            if not name or name in resident
        }
        self._switch(steps, others, loaded)
        self._start_load(steps)
        self.versions = {name: it.version for name, it in pointers.items()}

    def _answering(self, name: str) -> str:
        """The release that answers for a model here; empty if it is not loaded."""
        serving = self._models.serving
        if not name:
            return serving.active
        # A model that was the default one until now answers by the same release.
        former = serving.default if name == serving.default_name else Roles("")
        active = serving.others.get(name, former).active
        return active if active in serving.models else ""

    def _start_load(self, steps: Mapping[str, Step]) -> None:
        """The default model's release first, else the one that is being loaded."""
        wanted = {step.load: name for name, step in steps.items() if step.load}
        load = steps[""].load or (self.loading if self.loading in wanted else next(iter(wanted), ""))
        if load == self.loading:
            return
        if self._load:
            self._load.cancel()
            self._hold(self._load)
        self.loading = load
        self._load = asyncio.create_task(self._load_fit(load, wanted[load])) if load else None

    async def _load_fit(self, release: str, name: str) -> Model:
        """Load a release of a model. Raises: UnfitRelease also if a lane that meets its budget now would miss it;
        ReleaseError."""
        model = await self._loader.load(release)
        now = self._models.serving.models.get(self._answering(name))
        if now and (slow := newly_slow(model.timings, now.timings)):
            self._hold(asyncio.create_task(self._loader.retire(model)))
            why = "; ".join(f"{precision} {found}" for precision, found in slow.items())
            raise UnfitRelease(Unfit.SLOW, f"it is slow here, and {now.release} is not: {why}")
        return model

    async def _sizes_of(self, others: Mapping[str, Pointer]) -> dict[str, int]:
        """Bytes by model. A release that cannot be opened has none: to load it will fail, and say why."""
        found = {}
        for name, pointer in others.items():
            releases = [it for it in (pointer.active, pointer.canary) if it]
            for release in releases:
                if release not in self._sizes:
                    try:
                        self._sizes[release] = await self._loader.size_of(release)
                    except ReleaseError:
                        self._sizes[release] = 0
            found[name] = sum(self._sizes[it] for it in releases)
        return found

    def _use(self, name: str, size: int, loaded: Mapping[str, Model]) -> Use:
        own = [model for release, model in loaded.items() if name_of(release) == name]
        settled = self._clock.monotonic() - self._loaded_at.get(name, -math.inf) >= SETTLED_SECONDS
        # A load goes on to its end: two models that are asked in turn would else cancel each other's.
        busy = any(model.leases.held for model in own) or bool(own and not settled) or name_of(self.loading) == name
        return Use(size, self._models.used.get(name, -math.inf), busy, bool(own))

    def _expired(self, loaded: Collection[str]) -> Collection[str]:
        """Releases that were kept for long enough."""
        if not self._keep_seconds:
            return loaded
        now = self._clock.monotonic()
        return {it for it, since in self._kept_since.items() if now - since >= self._keep_seconds}

    def _finished_load(self, pointers: Mapping[str, Pointer]) -> Model | None:
        if self._load is None or not self._load.done():
            return None
        task, release = self._load, self.loading
        self._load, self.loading = None, ""
        try:
            return task.result()
        except asyncio.CancelledError:
            return None
        except UnfitRelease as error:
            how, why = error.how, str(error)
        except ReleaseError as error:
            how, why = Unfit.REFUSED, str(error)
        except Exception:
            # The replica goes on with the releases that it serves.
            log.exception("loading %s failed with an unexpected error", release)
            how, why = Unfit.REFUSED, "loading it failed; the log has the details"
        name = next((it for it, pointer in pointers.items() if release in (pointer.active, pointer.canary)), "")
        log.error("release %s is not served, %s stays: %s", release, self._answering(name) or "nothing", why)
        self._set_failures({**self.failures, release: Failure(pointers[name].version, how, why, name)})
        return None

    def _forget_failures(self, pointers: Mapping[str, Pointer]) -> None:
        """Those of former versions of the pointers."""
        current = {name: it.version for name, it in pointers.items()}
        kept = {it: failure for it, failure in self.failures.items() if current.get(failure.model) == failure.version}
        if len(kept) < len(self.failures):
            self._set_failures(kept)

    def _set_failures(self, failures: dict[str, Failure]) -> None:
        self.failures = failures
        self._metrics.set_failed((release, failure.how) for release, failure in failures.items())

    def _switch(self, steps: Mapping[str, Step], others: Mapping[str, Pointer], loaded: dict[str, Model]) -> None:
        """Apply the steps to the loaded releases: serve some, keep some, retire the rest."""
        named = [it for step in steps.values() for it in (step.active, step.canary) if it in loaded]
        answering = {it: loaded.pop(it) for it in dict.fromkeys(named)}
        kept = {step.keep: loaded.pop(step.keep) for step in steps.values() if step.keep in loaded}
        for release in kept.keys() - self._models.kept.keys():
            self._kept_since[release] = self._clock.monotonic()
            log.info("release %s stays loaded for %g s: a rollback to it is at once", release, self._keep_seconds)
        self._models.kept = kept
        self._kept_since = {it: since for it, since in self._kept_since.items() if it in kept}
        step = steps[""]
        roles = {name: _roles(steps.get(name), pointer) for name, pointer in others.items()}
        before = self._models.serving
        self._models.serving = serving = Serving(answering, step.active, step.canary, step.weight, roles)
        for model in loaded.values():
            self._hold(asyncio.create_task(self._loader.retire(model)))
        if before != serving:
            _announce(before, serving, self._metrics)

    def _hold(self, task: "asyncio.Task[Any]") -> None:
        """Keep a reference to a task until it ends, and log its error."""

        def ended(task: "asyncio.Task[Any]") -> None:
            self._ending.discard(task)
            if not task.cancelled() and (error := task.exception()):
                log.error("taking a release out of service failed: %s", error)

        self._ending.add(task)
        task.add_done_callback(ended)


async def follow(models: Models, desired: DesiredReleases, metrics: Metrics) -> None:
    """For a process without lanes: follow the releases of the pointers without loading them, until cancelled."""
    while True:
        if pointer := await desired.newest():
            others = {name: _roles(None, it) for name, it in served(desired.others, pointer).items()}
            serving = Serving({}, pointer.active, pointer.canary, pointer.weight, others)
            if serving != models.serving:
                _announce(models.serving, serving, metrics)
                models.serving = serving
        await asyncio.sleep(PERIOD_SECONDS)


def _roles(step: Step | None, pointer: Pointer) -> Roles:
    """`step`: None for a model that is not loaded here; its releases may be elsewhere."""
    if step is None or not (step.active or step.canary):
        return Roles(pointer.active, pointer.canary, pointer.weight)
    return Roles(step.active or pointer.active, step.canary, step.weight)


def _announce(before: Serving, serving: Serving, metrics: Metrics) -> None:
    """Log and measure what has changed."""
    metrics.set_serving({name: (it.active, it.canary, it.weight) for name, it in serving.by_name.items()})
    for name, it in serving.by_name.items():
        if it != before.by_name.get(name):
            beside = f", {it.canary} for {it.weight:.0%} of callers" if it.canary else ""
            log.info("release %s answers%s%s", it.active, beside, f" of model {name}" * (name in serving.others))
