"""From a release id to a model that can serve: probed, opened, warmed."""

import asyncio
import contextlib
import ctypes
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from realtime_service.execution.devices import Devices
from realtime_service.models.precomputed import PrecomputedScores
from realtime_service.models.registry import Model
from realtime_service.models.warmup import Turn, WarmVariant, Width, open_variant, specialise, warm_batches
from realtime_service.rollout import probe
from shared_model.evaluation import attestation
from shared_model.releases.store import Release, Store
from shared_model.types import Device as DeviceKind
from shared_model.types import Precision

log = logging.getLogger(__name__)

#: A step of a warm-up starts when the device rests; one that never rests is not waited for longer.
_TURN_SECONDS = 0.05


class Abandoned(Exception):
    """Nobody wants the model any more that is being loaded."""


class Loader:
    """`variants`: what to run on which device, most urgent first; `cores`: of a call on CPU. `published` makes a
    release's published scores, or None where they are not used."""

    def __init__(
        self,
        store: Store,
        variants: Mapping[Precision, DeviceKind],
        cores: int,
        probe_seconds: float,
        devices: Devices,
        published: Callable[[str], PrecomputedScores | None],
    ) -> None:
        self._store = store
        self._variants = variants
        self._cores = cores
        self._probe_seconds = probe_seconds
        self._devices = devices
        self._published = published
        self._background = ThreadPoolExecutor(1, thread_name_prefix="warm-up", initializer=_lower_priority)

    async def load_first(self, release_id: str) -> Model:
        """What the process starts with: open for single texts of its most urgent variant. Raises: ReleaseError.

        No probe: nothing is served yet that a crash could harm, and whoever starts a process sees it end.
        """

        def load() -> Model:
            release = self._store.open(release_id)
            model = self._model(release)
            self._open(model, release, next(iter(self._variants)), _at_once)
            return model

        return await asyncio.to_thread(load)

    async def load_rest(self, model: Model) -> AsyncIterator[Precision]:
        """Open what `load_first` left, at full speed; yields each variant that may now run whatever comes.

        Raises: ReleaseError. A caller who stops waiting leaves a step to end by itself.
        """
        release = await asyncio.to_thread(self._store.open, model.release)
        for precision in self._variants:
            await asyncio.to_thread(self._complete, model, release, precision)
            yield precision
        await asyncio.to_thread(_specialise_all, model, release, _at_once)

    async def load(self, release_id: str) -> Model:
        """Probe a release and load it beside what is served, felt as little as possible.

        Raises: UnfitRelease, ReleaseError. Cancelled, it ends its probe, and its warm-up after the step that runs.
        """
        await probe.run(self._store, release_id, self._variants, self._cores, self._probe_seconds)
        abandoned = threading.Event()

        def turn() -> None:
            self._devices.wait_for_quiet(_TURN_SECONDS)
            if abandoned.is_set():
                raise Abandoned

        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._background, lambda: self._load(release_id, turn))
        finally:
            abandoned.set()

    async def retire(self, model: Model) -> None:
        """Close a model that no new request can meet, after the last that holds it."""
        await model.leases.returned()
        await self._devices.settled()
        await asyncio.to_thread(model.close)
        await asyncio.to_thread(_trim_heap)
        log.info("release %s is closed", model.release)

    def close(self) -> None:
        self._background.shutdown(wait=True)

    def _load(self, release_id: str, turn: Turn) -> Model:
        release = self._store.open(release_id)
        model = self._model(release)
        with contextlib.ExitStack() as opened:
            opened.callback(model.close)
            for precision in self._variants:
                warm_batches(self._open(model, release, precision, turn), release, turn)
            _specialise_all(model, release, turn)
            opened.pop_all()
        return model

    def _complete(self, model: Model, release: Release, precision: Precision) -> None:
        variant = model.engines.get(precision) or self._open(model, release, precision, _at_once)
        warm_batches(variant, release, _at_once)

    def _open(self, model: Model, release: Release, precision: Precision, turn: Turn) -> WarmVariant:
        device = self._variants[precision]
        attestation.ensure(release, precision, device, self._cores)
        variant = open_variant(release, precision, device, Width.on(device, self._cores), turn)
        model.engines[precision] = variant
        return variant

    def _model(self, release: Release) -> Model:
        return Model(release.id, release.output, release.encoder(), {}, self._published(release.id))


def _specialise_all(model: Model, release: Release, turn: Turn) -> None:
    # Only INT8 answers single texts in a hurry; half precision is what bulk runs in.
    if variant := model.engines.get(Precision.INT8):
        specialise(variant, release, turn)
    _trim_heap()


def _trim_heap() -> None:
    """The C library keeps what compiling freed, 150 MB of 980, until it is told to let go; others than glibc don't."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _at_once() -> None:
    """Nobody is served yet who could feel it."""


def _lower_priority(*_: Any) -> None:
    # The thread's own: the kernel's id of a thread is a process id to it. Workers it shares with the device are older.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), probe.LOW_PRIORITY)
