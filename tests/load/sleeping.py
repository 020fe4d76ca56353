"""python -m tests.load.sleeping RELEASES ID REDIS: the whole service, but its engines sleep.

This leaves the service's own behaviour under overload, on any machine: a call takes
SECONDS whatever its batch, so one stream answers 1 / SECONDS calls a second at batch 1.
"""

import asyncio
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from realtime_service.models.registry import Serving
from realtime_service.process.place import Place
from realtime_service.process.server import Server
from realtime_service.settings import ServiceSettings
from realtime_service.transport import event_loop
from shared_model.encoding import TokenBatch
from shared_model.engine import Engine
from shared_model.releases.store import Release, Store
from shared_model.settings import DeferredSettings
from shared_model.types import WHOLE, Device, Precision, Spread
from tests.load import child

SECONDS = 0.010


@dataclass
class SleepingEngine:
    """See `shared_model.engine.Engine`. `outputs`: numbers a text gets."""

    precision: Precision
    device: Device
    outputs: int
    width: int = 1
    streams: int = 1

    def rows(self, tokens: int, single: bool = False) -> Sequence[int]:
        return (1,) if single else (1, 4, 16, 64)

    def widened(self, threads: int) -> None:
        """More threads do not sleep faster."""

    def specialise(self, tokens: int, pairs: bool = False) -> None:
        """Nothing makes it faster."""

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Every shape takes the same time."""

    def score(self, batch: TokenBatch, single: bool = False) -> NDArray[np.float32]:
        time.sleep(SECONDS)
        return np.zeros((batch.rows, self.outputs), np.float32)

    def close(self) -> None:
        """Nothing is held."""


class SleepingRelease(Release):
    def engine(
        self, precision: Precision, device: Device, threads: int, streams: int = 1, spread: Spread = WHOLE
    ) -> Engine:
        return SleepingEngine(precision, device, self.heads.width)


class SleepingStore(Store):
    def open(self, release_id: str) -> Release:
        real = super().open(release_id)
        return SleepingRelease(real.files, real.manifest)


async def serve(releases: str, release_id: str, redis_url: str) -> None:
    settings = ServiceSettings(
        grpc_address="127.0.0.1:0", metrics_address="127.0.0.1:0", release=release_id, threads=1, precomputed=False
    )
    over, tasks = asyncio.Event(), list[asyncio.Task[None]]()
    store = SleepingStore(releases)
    async with Server(settings, store, Serving({}, release_id), redis_url, Place(), DeferredSettings()) as service:

        async def answer() -> None:
            await asyncio.to_thread(child.answer, {"address": service.address, "capacity": 1 / SECONDS}, dict)
            over.set()

        await service.run_until(over, lambda: tasks.append(asyncio.create_task(answer())))


if __name__ == "__main__":
    event_loop.run(serve(*sys.argv[1:]))
