"""The devices of this process behind one interface: each lane runs on the device of its variant.

A process on a GPU host may run INT8 on its CPU and half precision on the GPU. They do not wait for each other, so each
device has its own scheduler and number of streams.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from realtime_service.errors import ReplicaUnavailable
from realtime_service.execution.device import Computed, Device, Ran
from realtime_service.models.registry import Model
from realtime_service.models.warmup import Width
from realtime_service.scheduling.calls_under_way import CallsUnderWay
from realtime_service.settings import Lane
from shared_model.clock import Clock
from shared_model.encoding import Encoding
from shared_model.types import Device as DeviceKind
from shared_model.types import Precision, ServingPath, Spread


class Devices:
    """The methods are those of `Device`."""

    def __init__(
        self,
        lanes: Mapping[ServingPath, Lane],
        variants: Mapping[Precision, DeviceKind],
        cores: int,
        bulk_batch_seconds: float,
        clock: Clock,
        spreads: Mapping[Precision, Spread] = MappingProxyType({}),
        calls: CallsUnderWay | None = None,
    ) -> None:
        self.lanes = lanes
        self._of: dict[ServingPath, Device] = {}
        self._all: list[Device] = []
        # A GPU's stream needs the event loop between two calls.
        on_loop = set(variants.values()) == {DeviceKind.CPU}
        for kind in dict.fromkeys(variants.values()):
            own = {path: lane for path, lane in lanes.items() if variants[lane.precision] is kind}
            width = Width.on(kind, cores, [it for precision, it in spreads.items() if variants[precision] is kind])
            device = Device(own, width.streams, bulk_batch_seconds, clock, on_loop, width.beside, calls)
            self._all.append(device)
            self._of |= dict.fromkeys(own, device)

    @property
    def busy(self) -> bool:
        """Whether tasks are queued on any device: a new one may not start at once."""
        return any(device.scheduler.busy for device in self._all)

    @property
    def starved(self) -> bool:
        """Whether a device of interactive lanes has hardly any interactive work queued. A router, which has no device,
        cannot tell of those that it forwards to, and is taken to keep them waiting."""
        return not self._all or any(device.scheduler.starved for device in self._all)

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
        if path not in self._of:
            raise ReplicaUnavailable(f"the {path} lane is not here")
        return await self._of[path].compute(model, path, encodings, arrived, deadline, real_time, finish_in, caller)

    def finish_of(
        self,
        model: Model,
        path: ServingPath,
        tokens: Sequence[int],
        real_time: bool,
        caller: str = "",
        at_least: bool = False,
    ) -> float | None:
        device = self._of.get(path)
        return device.finish_of(model, path, tokens, real_time, caller, at_least) if device else None

    def alone(self, model: Model, path: ServingPath, tokens: Sequence[int]) -> float:
        return self._of[path].alone(model, path, tokens) if path in self._of else 0.0

    def typical(self, model: Model, path: ServingPath, tokens: int) -> tuple[float, float, float] | None:
        return self._of[path].typical(model, path, tokens)

    def per_text(self, model: Model, path: ServingPath, tokens: int = 1) -> float:
        return self._of[path].per_text(model, path, tokens)

    def utilisation_of(self, path: ServingPath) -> float:
        return self._of[path].utilisation_of(path)

    def queue_depth(self, path: ServingPath) -> int:
        return self._of[path].scheduler.queue_depth(path)

    def take_ran(self, path: ServingPath) -> Ran:
        return self._of[path].take_ran(path)

    def take_asked_in_vain(self, path: ServingPath) -> bool:
        return self._of[path].take_asked_in_vain(path)

    def idle(self, path: ServingPath, now: float) -> bool:
        """Whether the device of a lane has only deferred work."""
        return self._of[path].scheduler.idle(now)

    def wait_for_quiet(self, seconds: float) -> None:
        """For other threads: wait until no batch runs on any device, at most so long."""
        until = time.monotonic() + seconds
        for device in self._all:
            device.quiet.wait(max(0.0, until - time.monotonic()))

    async def settled(self) -> None:
        await asyncio.gather(*(device.settled() for device in self._all))

    def close(self) -> None:
        for device in self._all:
            device.close()
