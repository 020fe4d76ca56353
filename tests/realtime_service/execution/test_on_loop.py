"""Short batches that need all cores of a process: its event loop runs them itself, in the scheduler's order, unless
much waits."""

import asyncio
import threading
import time

import numpy as np
import pytest

from realtime_service.errors import ScoringFailed
from realtime_service.execution.device import ON_LOOP_SECONDS, ON_LOOP_WAITING, Computed
from realtime_service.execution.devices import Devices
from realtime_service.models.registry import Model
from realtime_service.models.warmup import WarmVariant
from realtime_service.scheduling.calls_under_way import CallsUnderWay
from realtime_service.scheduling.latency_model import LatencyModel, VariantLatency
from realtime_service.settings import ServiceSettings, lanes, variants
from shared_model.clock import SystemClock
from shared_model.encoding import Encoding
from shared_model.types import Device as DeviceKind
from shared_model.types import Precision, ServingPath
from tests.realtime_service.execution.test_device import BROKEN, GatedEngine, model

LATENCY, DYNAMIC = ServingPath.LATENCY, ServingPath.DYNAMIC
LOOP, STREAM = threading.main_thread().name, "stream-"
SHORT, LONG = ON_LOOP_SECONDS / 2, ON_LOOP_SECONDS * 2


def devices(cores: int = 1, half: DeviceKind = DeviceKind.CPU, calls: CallsUnderWay | None = None) -> Devices:
    table = lanes(ServiceSettings(), half)
    return Devices(table, variants(table, half), cores, 0.010, SystemClock(), calls=calls)


async def ask(made: Devices, one: Model, tokens: int, path: ServingPath = LATENCY) -> list[Computed]:
    text = Encoding(np.ones(tokens, np.int32), truncated=False)
    return await made.compute(one, path, [text], time.monotonic(), None)


@pytest.mark.parametrize(
    ("cores", "half", "seconds", "expected"),
    [
        (1, DeviceKind.CPU, SHORT, LOOP),
        (1, DeviceKind.CPU, LONG, STREAM),
        # Others could begin on the second core.
        (2, DeviceKind.CPU, SHORT, STREAM),
        # A GPU's stream needs the loop.
        (1, DeviceKind.CUDA, SHORT, STREAM),
    ],
)
async def test_the_loop_runs_short_batches_of_a_process_with_one_core(
    cores: int, half: DeviceKind, seconds: float, expected: str
) -> None:
    made, engine = devices(cores, half), GatedEngine()
    assert (await ask(made, model(engine, seconds), 5))[0].scores[0] == 5
    assert engine.threads[0].startswith(expected)
    made.close()


@pytest.mark.parametrize(("seconds", "expected"), [(SHORT, LOOP), (LONG, STREAM)])
async def test_the_loop_runs_a_short_text_that_has_all_cores(seconds: float, expected: str) -> None:
    made, narrow, wide = devices(cores=2), GatedEngine(), GatedEngine()
    latency = VariantLatency(LatencyModel(2 * seconds, 0.0, 0.0), LatencyModel(seconds, 0.0, 0.0))
    one = model(narrow)
    one.engines[Precision.INT8] = WarmVariant(narrow, wide, latency, latency)  # type: ignore[index, arg-type]
    await ask(made, one, 5)
    assert not narrow.threads
    assert wide.threads[0].startswith(expected)
    made.close()


@pytest.mark.parametrize(("under_way", "on_all_cores"), [(0, True), (1, True), (2, False)])
async def test_a_text_has_all_cores_where_its_call_is_the_only_one(under_way: int, on_all_cores: bool) -> None:
    calls = CallsUnderWay()
    made, narrow, wide = devices(2, calls=calls), GatedEngine(), GatedEngine()
    latency = VariantLatency(LatencyModel(2 * SHORT, 0.0, 0.0), LatencyModel(SHORT, 0.0, 0.0))
    one = model(narrow)
    one.engines[Precision.INT8] = WarmVariant(narrow, wide, latency, latency)  # type: ignore[index, arg-type]
    calls.count = under_way
    await ask(made, one, 5)
    assert (bool(wide.threads), bool(narrow.threads)) == (on_all_cores, not on_all_cores)
    made.close()


async def test_the_loop_runs_nothing_itself_while_much_waits() -> None:
    made, engine = devices(), GatedEngine()
    one, count = model(engine, SHORT), 2 + round(ON_LOOP_WAITING / SHORT) + 3
    await asyncio.gather(*(ask(made, one, 5) for _ in range(count)))
    # The first came to an idle device. The work behind the second is too much; behind the last there is no more.
    assert engine.threads[0] == LOOP
    assert engine.threads[1].startswith(STREAM)
    assert engine.threads[-1] == LOOP
    made.close()


async def test_each_turn_of_the_loop_runs_one_batch_and_the_most_urgent_first() -> None:
    made, engine = devices(), GatedEngine()
    one, turns = model(engine, SHORT), list[int]()
    texts = ((9, LATENCY), (17, DYNAMIC), (33, DYNAMIC), (5, LATENCY))
    asked = [asyncio.create_task(ask(made, one, *it)) for it in texts]
    while not all(it.done() for it in asked):
        await asyncio.sleep(0)
        turns.append(len(engine.ran))
    assert engine.ran == [9, 5, 17, 33]
    assert max(after - before for before, after in zip([0, *turns], turns, strict=False)) == 1
    made.close()


async def test_a_batch_that_fails_on_the_loop_fails_its_request_alone() -> None:
    made, engine = devices(), GatedEngine()
    one = model(engine, SHORT)
    with pytest.raises(ScoringFailed):
        await ask(made, one, BROKEN)
    engine.gate.set()
    assert (await ask(made, one, 5))[0].scores[0] == 5
    made.close()
