"""Loads a release: canary check, opening of engines, warm-up, timing."""

import asyncio
import contextlib
import ctypes
import functools
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from realtime_service.execution.devices import Devices
from realtime_service.models.latency_budgets import SHORT_TOKENS, SPACING_SECONDS, TRIES, judge, time_call, time_short
from realtime_service.models.precomputed import PrecomputedScores
from realtime_service.models.registry import Model
from realtime_service.models.warmup import Turn, WarmVariant, Width, open_variant, specialise, warm_batches
from realtime_service.rollout import probe
from realtime_service.scheduling.scheduler import INTERACTIVE
from shared_model.evaluation import attestation, benchmark
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.releases.store import Release, Store
from shared_model.types import Device as DeviceKind
from shared_model.types import Precision, Spread

log = logging.getLogger(__name__)

#: A step of a warm-up waits until no batch runs on the device, at most so many seconds.
_TURN_SECONDS = 0.05
#: The same for a call that is timed: another batch beside it would make it look slow.
_TIMED_TURN_SECONDS = 1.0
#: Observations of one recalibration. Each takes a prediction that is far too long down by a twentieth.
_OBSERVED = 5


class Abandoned(Exception):
    """The load was cancelled."""


class Loader:
    """`variants`: the device of each precision, most urgent first; `spreads`: of each over devices; `cores`: of a call
    on CPU. `published` makes a release's published scores, or None if they are not used; `bounds` has the latency
    budgets."""

    def __init__(
        self,
        store: Store,
        variants: Mapping[Precision, DeviceKind],
        cores: int,
        probe_seconds: float,
        devices: Devices,
        published: Callable[[str], PrecomputedScores | None],
        bounds: GateSettings,
        spreads: Mapping[Precision, Spread],
    ) -> None:
        self._store = store
        self._variants = variants
        self._cores = cores
        self._probe_seconds = probe_seconds
        self._devices = devices
        self._published = published
        self._bounds = bounds
        self._spreads = spreads
        self._background = ThreadPoolExecutor(
            1,
            thread_name_prefix="warm-up",
            # Of this thread alone: Linux takes a native thread id as a process id.
            initializer=lambda: os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), probe.LOW_PRIORITY),
        )

    async def load_first(self, release_id: str) -> Model:
        """The model that the process starts with: its most urgent variant, for single texts. Raises: ReleaseError.

        Without a canary check: a crash harms no request yet, and ends the start with an error.
        """

        def load() -> Model:
            model, release = self._opened(release_id)
            self._open(model, release, next(iter(self._variants)), _at_once)
            return model

        return await asyncio.to_thread(load)

    async def load_rest(self, model: Model) -> AsyncIterator[Precision]:
        """Complete the model of `load_first` at full speed; yields each variant once it is warmed for all shapes.

        Two variants are warmed side by side where each has a core: one call at a time is timed of each. Raises:
        ReleaseError. If the caller is cancelled, the current steps still end.
        """
        release = await asyncio.to_thread(self._store.open, model.release)
        room = asyncio.Semaphore(min(2, self._cores))

        async def complete(precision: Precision) -> Precision:
            async with room:
                await asyncio.to_thread(self._complete, model, release, precision, _at_once)
            return precision

        steps = [asyncio.create_task(complete(precision)) for precision in self._variants]
        try:
            for step in asyncio.as_completed(steps):
                yield await step
        finally:
            for each in steps:
                each.cancel()
        _trim_heap()

    async def load(self, release_id: str) -> Model:
        """Check a release in a process of its own, then load and time it beside the served ones with little effect on
        them.

        Raises: UnfitRelease, ReleaseError. If cancelled, it ends the check at once, and the warm-up after its current
        step.
        """
        placed = {it: (device, self._spreads[it]) for it, device in self._variants.items()}
        await probe.run(self._store, release_id, placed, self._cores, self._probe_seconds)
        abandoned = threading.Event()

        def turn() -> None:
            self._devices.wait_for_quiet(_TURN_SECONDS)
            if abandoned.is_set():
                raise Abandoned

        try:
            loop = asyncio.get_running_loop()
            model = await loop.run_in_executor(self._background, lambda: self._load(release_id, turn))
        finally:
            abandoned.set()
        try:
            await self.measure(model)
        except BaseException:
            # In the background, after a call that still runs there.
            self._background.submit(model.close)
            raise
        return model

    async def measure(self, model: Model) -> None:
        """Time the variants of a loaded model against their budgets, with little effect on live calls, and replace its
        `timings`. Raises: the errors of an engine."""
        loop = asyncio.get_running_loop()
        budgets = {it: budget for it in model.engines if (budget := benchmark.budget_of(it, self._bounds))}
        tries: dict[Precision, list[float]] = {it: [] for it in budgets}

        def turn() -> None:
            self._devices.wait_for_quiet(_TIMED_TURN_SECONDS)

        # A lease, so that the model is not closed meanwhile.
        with model.leases:
            for number in range(TRIES):
                await asyncio.sleep(SPACING_SECONDS if number else 0)
                for precision, budget in budgets.items():
                    call = functools.partial(time_call, model.engines[precision], model.encoder.reads, budget, turn)
                    tries[precision].append(await loop.run_in_executor(self._background, call))
        for precision, budget in budgets.items():
            model.timings[precision] = judge(tries[precision], budget, model.timings.get(precision))

    async def recalibrate(self, model: Model) -> None:
        """Observe short texts in lanes that ran none, though requests asked for their time: where a lane predicts that
        each would be late, no call shows it that the host is as fast as before. Raises: the errors of an engine."""
        for path in INTERACTIVE:
            lane = self._devices.lanes.get(path)
            variant = model.engines.get(lane.precision) if lane else None
            if lane and variant and self._devices.take_asked_in_vain(path):
                latency = variant.latency_of(lane).narrow
                turn = functools.partial(self._devices.wait_for_quiet, _TIMED_TURN_SECONDS)
                call = functools.partial(time_short, variant.narrow, model.encoder.reads, lane.of_singles, turn)
                with model.leases:
                    for _ in range(_OBSERVED):
                        seconds = await asyncio.get_running_loop().run_in_executor(self._background, call)
                        latency.observe(1, SHORT_TOKENS, seconds)

    async def size_of(self, release_id: str) -> int:
        """Bytes of the files of the variants that run here. Raises: ReleaseError."""

        def size() -> int:
            release = self._store.open(release_id)
            variants = [release.manifest.variant(*it) for it in self._variants.items()]
            return sum(map(release.file_size, {path for variant in variants for path in variant.files.values()}))

        return await asyncio.to_thread(size)

    async def retire(self, model: Model) -> None:
        """Close a model that no new request can get, after the last request that uses it."""
        await model.leases.returned()
        await self._devices.settled()
        await asyncio.to_thread(model.close)
        await asyncio.to_thread(_trim_heap)
        log.info("release %s is closed", model.release)

    def close(self) -> None:
        self._background.shutdown(wait=True)

    def _load(self, release_id: str, turn: Turn) -> Model:
        model, release = self._opened(release_id)
        with contextlib.ExitStack() as opened:
            opened.callback(model.close)
            for precision in self._variants:
                self._complete(model, release, precision, turn)
            _trim_heap()
            opened.pop_all()
        return model

    def _complete(self, model: Model, release: Release, precision: Precision, turn: Turn) -> None:
        """Warm a variant, which is opened if it is not, for all shapes of its lanes."""
        variant = model.engines.get(precision) or self._open(model, release, precision, turn)
        warm_batches(variant, release, turn)
        # Urgent single texts run in INT8 only; half precision is for bulk.
        if precision is Precision.INT8:
            pairs = any(lane.of_singles and lane.max_rows > 1 for lane in self._devices.lanes.values())
            specialise(variant, release, pairs, turn)

    def _open(self, model: Model, release: Release, precision: Precision, turn: Turn) -> WarmVariant:
        device, spread = self._variants[precision], self._spreads[precision]
        attestation.ensure(release, precision, device, self._cores, spread)
        beside = [it for other, it in self._spreads.items() if self._variants[other] is device]
        variant = open_variant(release, precision, device, Width.on(device, self._cores, beside), turn, spread)
        model.engines[precision] = variant
        return variant

    def _opened(self, release_id: str) -> tuple[Model, Release]:
        """A model without engines yet."""
        release = self._store.open(release_id)
        return Model(release.id, release.heads, release.encoder(), {}, self._published(release.id)), release


def _trim_heap() -> None:
    """Return memory that compiling freed to the system; glibc keeps 150 MB of 980 otherwise. No-op without glibc."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _at_once() -> None:
    """A `Turn` without waiting: until all lanes are open, the start comes before the requests of those that are."""
