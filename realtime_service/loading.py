"""From a release id to a model that can serve: probed, opened, warmed."""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from realtime_service import probe
from realtime_service.models import Model
from realtime_service.precomputed import PrecomputedScores
from realtime_service.scheduling.device import Device
from realtime_service.warmup import Turn, warm_engines
from shared_model.releases import proof
from shared_model.releases.store import Release, Store
from shared_model.types import Device as DeviceKind
from shared_model.types import Precision

#: A step of a warm-up starts when the device rests; one that never rests is not waited for longer.
_TURN_SECONDS = 0.05


class Abandoned(Exception):
    """Nobody wants the model any more that is being loaded."""


class Loader:
    """`published` makes a release's published scores, or None where they are not used."""

    def __init__(
        self,
        store: Store,
        variants: Mapping[Precision, DeviceKind],
        threads: int,
        probe_seconds: float,
        device: Device,
        published: Callable[[str], PrecomputedScores | None],
    ) -> None:
        self._store = store
        self._variants = variants
        self._threads = threads
        self._probe_seconds = probe_seconds
        self._device = device
        self._published = published
        self._background = ThreadPoolExecutor(1, thread_name_prefix="warm-up", initializer=_lower_priority)

    async def load_first(self, release_id: str) -> Model:
        """Load what the process starts with, at full speed. Raises: ReleaseError.

        No probe: nothing is served yet that a crash could harm, and whoever starts a process sees it end.
        """

        def load() -> Model:
            release = self._store.open(release_id)
            for precision, device in self._variants.items():
                proof.ensure(release, precision, device, self._threads)
            return self._open(release, lambda: None)

        return await asyncio.to_thread(load)

    async def load(self, release_id: str) -> Model:
        """Probe a release and load it beside what is served, felt as little as possible.

        Raises: UnfitRelease, ReleaseError. Cancelled, it ends its probe, and its warm-up after the step that runs.
        """
        await probe.run(self._store, release_id, self._variants, self._threads, self._probe_seconds)
        abandoned = threading.Event()

        def turn() -> None:
            self._device.quiet.wait(_TURN_SECONDS)
            if abandoned.is_set():
                raise Abandoned

        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._background, lambda: self._open(self._store.open(release_id), turn))
        finally:
            abandoned.set()

    async def retire(self, model: Model) -> None:
        """Close a model that no new request can meet, after the last that holds it."""
        await model.leases.returned()
        await self._device.settled()
        await asyncio.to_thread(model.close)

    def close(self) -> None:
        self._background.shutdown(wait=True)

    def _open(self, release: Release, turn: Turn) -> Model:
        engines = warm_engines(release, self._variants, self._threads, turn)
        return Model(release.id, release.output, release.encoder(), engines, self._published(release.id))


def _lower_priority(*_: Any) -> None:
    # The thread's own: the kernel's id of a thread is a process id to it. Workers it shares with the device are older.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), probe.LOW_PRIORITY)
