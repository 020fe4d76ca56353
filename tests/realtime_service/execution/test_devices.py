"""A process with a CPU and a GPU: each lane runs on the streams of its variant's device, independently of the other.

The engines are fakes; schedulers, streams and the choice of both are real."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from realtime_service.errors import ReplicaUnavailable
from realtime_service.execution.device import AHEAD, Computed
from realtime_service.execution.devices import Devices
from realtime_service.models.registry import Model
from realtime_service.models.warmup import BulkVariant, WarmVariant, Width
from realtime_service.scheduling.latency_model import LatencyModel, VariantLatency
from realtime_service.settings import ServiceSettings, lanes, variants
from shared_model.clock import SystemClock
from shared_model.encoding import Encoder, Encoding, InputSpec, TokenBatch
from shared_model.output import OutputKind, OutputSpec
from shared_model.types import WHOLE, Device, Precision, ServingPath, Spread
from tests.realtime_service.cluster.directory import until
from tests.realtime_service.execution.test_device import GatedEngine
from tests.realtime_service.rollout import tiny_releases

CORES = 3
LATENCY, DYNAMIC, THROUGHPUT, DEFERRED = list(lanes(ServiceSettings(), Device.CPU))


class CountingEngine(GatedEngine):
    """`running`: calls under way."""

    def __init__(self) -> None:
        super().__init__()
        self.running = 0
        self.gate.clear()

    def score(self, batch: TokenBatch, single: bool = False) -> NDArray[np.float32]:
        self.running += 1
        try:
            return super().score(batch, single)
        finally:
            self.running -= 1


class Process:
    """The lanes, the devices and a model of a process on a host whose half precision runs on `half`."""

    def __init__(self, half: Device) -> None:
        table = lanes(ServiceSettings(), half)
        self.engines = {precision: CountingEngine() for precision in variants(table, half)}
        self.devices = Devices(table, variants(table, half), CORES, 0.010, SystemClock())
        latency = VariantLatency(LatencyModel(0.0005, 0.0, 0.0))
        warm = {it: WarmVariant(engine, None, latency, latency) for it, engine in self.engines.items()}  # type: ignore[arg-type]
        #: Of bulk work beside the GPU's other calls.
        self.bulk = CountingEngine()
        if half is Device.CUDA:
            warm[Precision.FP16] = replace(warm[Precision.FP16], bulk=BulkVariant(self.bulk, latency))  # type: ignore[arg-type]
        encoder = Encoder(tiny_releases.tokenizer(), InputSpec(256), "any")
        self.model = Model("any", OutputSpec(OutputKind.EMBEDDING, (), 2), encoder, dict(warm))

    def ask(self, path: ServingPath) -> "asyncio.Task[list[Computed]]":
        text: Sequence[Encoding] = [Encoding(np.ones(8, np.int32), truncated=False)]
        return asyncio.create_task(self.devices.compute(self.model, path, text, time.monotonic(), None))

    async def end(self, *asked: "asyncio.Task[list[Computed]]") -> None:
        for engine in (*self.engines.values(), self.bulk):
            engine.gate.set()
        await asyncio.gather(*asked)
        await self.devices.settled()
        self.devices.close()


@pytest.mark.parametrize(
    ("device", "cores", "expected"),
    [(Device.CPU, 4, Width(4, 4)), (Device.CPU, 1, Width(1, 1)), (Device.CUDA, 4, Width(4, 1, beside=1))],
)
def test_streams_follow_the_device(device: Device, cores: int, expected: Width) -> None:
    assert Width.on(device, cores) == expected


def test_models_that_are_split_run_no_bulk_work_beside_other_calls() -> None:
    assert Width.on(Device.CUDA, 4, [Spread(ranks=2)]) == Width(4, 1)
    assert Width.on(Device.CUDA, 4, [WHOLE, Spread(stages=2)]) == Width(4, 2)


async def test_beside_a_gpu_the_latency_lane_keeps_a_stream_a_core() -> None:
    process = Process(Device.CUDA)
    cpu, gpu = process.engines[Precision.INT8], process.bulk
    bulk = [process.ask(THROUGHPUT), process.ask(DEFERRED)]
    await until(lambda: gpu.running)
    urgent = [process.ask(LATENCY) for _ in range(CORES + AHEAD + 1)]
    await until(lambda: cpu.running == CORES)
    # A GPU runs one call of bulk work at a time, and the CPU does not wait for it.
    assert gpu.running == 1
    assert (process.devices.queue_depth(LATENCY), process.devices.queue_depth(DEFERRED)) == (1, 1)
    assert process.devices.busy
    assert process.devices.starved, "interactive calls have the GPU for themselves"
    cpu.gate.set()
    await asyncio.gather(*urgent)
    assert gpu.running == 1
    await process.end(*bulk)


async def test_interactive_calls_of_a_gpu_do_not_wait_for_its_bulk_work() -> None:
    process = Process(Device.CUDA)
    urgent = process.engines[Precision.FP16]
    bulk = [process.ask(THROUGHPUT), process.ask(DEFERRED)]
    await until(lambda: process.bulk.running)
    urgent.gate.set()
    await asyncio.gather(*(process.ask(DYNAMIC) for _ in range(3)))
    assert (process.bulk.running, len(urgent.ran), process.devices.queue_depth(DEFERRED)) == (1, 3, 1)
    urgent.gate.clear()
    # One at a time, too.
    later = [process.ask(DYNAMIC), process.ask(DYNAMIC)]
    await until(lambda: urgent.running)
    assert (urgent.running, process.devices.queue_depth(DYNAMIC)) == (1, 1)
    await process.end(*bulk, *later)


async def test_without_a_gpu_all_lanes_share_the_cores() -> None:
    process = Process(Device.CPU)
    asked = [process.ask(THROUGHPUT), *(process.ask(LATENCY) for _ in range(CORES + AHEAD))]
    await until(lambda: sum(it.running for it in process.engines.values()) == CORES)
    assert sum(map(process.devices.queue_depth, process.devices.lanes)) == 1
    await process.end(*asked)


async def test_a_batch_that_is_taken_ahead_waits_until_a_stream_is_free() -> None:
    process = Process(Device.CPU)
    asked, began = [process.ask(LATENCY) for _ in range(CORES + AHEAD)], time.monotonic()
    await until(lambda: process.engines[Precision.INT8].running == CORES)
    assert not process.devices.busy
    busy_for = time.monotonic() - began
    await process.end(*asked)
    assert asked[-1].result()[0].queued > busy_for


def test_a_router_takes_devices_for_starved() -> None:
    assert Devices({}, {}, CORES, 0.010, SystemClock()).starved


async def test_a_lane_that_is_not_served_is_refused() -> None:
    process = Process(Device.CUDA)
    with pytest.raises(ReplicaUnavailable, match="the precomputed lane is not here"):
        await process.ask(ServingPath.PRECOMPUTED)
    await process.end()
