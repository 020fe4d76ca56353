"""The device under requests that fail, expire and are cancelled: each ends once and leaves nothing in memory."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from types import NoneType
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from realtime_service.errors import DeadlineExpired, ScoringFailed
from realtime_service.execution.device import Computed, Device, Ran
from realtime_service.models.registry import Model
from realtime_service.models.warmup import WarmVariant
from realtime_service.scheduling.latency_model import LatencyModel, VariantLatency
from realtime_service.settings import ServiceSettings, lanes
from shared_model import tracing
from shared_model.clock import Clock, SimulatedClock, SystemClock
from shared_model.encoding import Encoder, Encoding, InputSpec, TokenBatch
from shared_model.output import OutputKind, OutputSpec
from shared_model.tracing import Work
from shared_model.tracing.tracer import Span, Tracer
from shared_model.types import Device as DeviceKind
from shared_model.types import Precision, ServingPath
from tests import otlp
from tests.realtime_service.rollout import tiny_releases

LATENCY, DYNAMIC = ServingPath.LATENCY, ServingPath.DYNAMIC
#: Tokens that an engine breaks on.
BROKEN = 40


class GatedEngine:
    """Answers a text with its number of tokens once its gate is open; a failure closes the gate.

    `ran`: tokens of the texts that were begun; `threads`: of the calls. `begun`: set when any was begun.
    """

    precision = Precision.INT8

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.ran: list[int] = []
        self.threads: list[str] = []

    def score(self, batch: TokenBatch, single: bool = False) -> NDArray[np.float32]:
        tokens = batch.mask.sum(axis=1)
        self.ran += tokens.tolist()
        self.threads.append(threading.current_thread().name)
        self.begun.set()
        assert self.gate.wait(20)
        if BROKEN in tokens:
            self.gate.clear()
            raise RuntimeError("the engine broke")
        return np.repeat(tokens[:, None], 2, axis=1).astype(np.float32)


@pytest.fixture
def engine() -> Iterator[GatedEngine]:
    made = GatedEngine()
    yield made
    made.gate.set()


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


@pytest_asyncio.fixture
async def device(engine: GatedEngine, clock: Clock) -> AsyncIterator[Device]:
    """A device with one stream; the event loop's exception handler must not have been called."""
    table, complaints = lanes(ServiceSettings(), DeviceKind.CPU), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    made = Device(table, 1, 0.010, clock)
    yield made
    engine.gate.set()
    await made.settled()
    made.close()
    gc.collect()
    assert not complaints


def model(engine: GatedEngine, seconds: float = 0.0005) -> Model:
    """`seconds`: that each call is predicted to take."""
    variant = WarmVariant(engine, None, *(VariantLatency(LatencyModel(seconds, 0.0, 0.0)) for _ in range(2)))  # type: ignore[arg-type]
    encoder = Encoder(tiny_releases.tokenizer(), InputSpec(256), "any")
    return Model("any", OutputSpec(OutputKind.EMBEDDING, (), 2), encoder, dict.fromkeys(Precision, variant))


async def compute(device: Device, one: Model, *tokens: int, seconds: float | None = None) -> list[Computed]:
    """A request of texts of so many tokens each, on the dynamic lane, to be answered within `seconds`."""
    now = device._clock.monotonic()
    texts = [Encoding(np.ones(count, np.int32), truncated=False) for count in tokens]
    return await device.compute(one, DYNAMIC, texts, now, None if seconds is None else now + seconds)


async def occupied(device: Device, engine: GatedEngine, one: Model) -> "asyncio.Task[list[Computed]]":
    """A request of 8 tokens that occupies the stream until the engine's gate opens."""
    engine.gate.clear()
    engine.begun.clear()
    task = asyncio.create_task(compute(device, one, 8))
    assert await asyncio.to_thread(engine.begun.wait, 20)
    return task


def scores(rows: Sequence[Computed]) -> list[float]:
    return [row.scores[0] for row in rows]


async def test_texts_are_answered_in_their_order_whatever_ran_first(device: Device, engine: GatedEngine) -> None:
    blocking = await occupied(device, engine, one := model(engine))
    request = asyncio.create_task(compute(device, one, 30, 5, 30, 60, 5))
    await asyncio.sleep(0)
    engine.gate.set()
    assert scores(await blocking) == [8]
    rows = await request
    assert scores(rows) == [30, 5, 30, 60, 5]
    assert engine.ran[1:] != [30, 5, 30, 60, 5]
    assert [row.batch_rows for row in rows] == [2, 2, 2, 1, 2]
    # Widths are 8, 32 and 64.
    ran = device.take_ran(DYNAMIC)
    assert (ran.tokens, ran.padding) == (8 + 130, (64 - 60) + (16 - 10) + (64 - 60))
    assert ran.seconds > 0
    assert device.take_ran(DYNAMIC) == Ran()


# By a clock that stands still, a batch seems to begin when it has ended.
@pytest.mark.parametrize("clock", [SystemClock(), SimulatedClock()])
async def test_a_batch_is_a_span_that_links_to_all_its_requests(
    device: Device, engine: GatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with otlp.collecting() as collector:
        for name, value in collector.environment().items():
            monkeypatch.setenv(name, value)
        tracer, one = Tracer("test", lambda count: None), model(engine)
        calls = [tracer.begin(sampled) for _ in range(2) if (sampled := tracer.sampled("call", {}))]

        async def traced(span: Span, *tokens: int) -> None:
            with tracing.working(Work(tracer, span)):
                await compute(device, one, *tokens)

        blocking = await occupied(device, engine, one)
        beside = [traced(calls[0], 5, 6), traced(calls[1], 7), compute(device, one, 8), traced(calls[1], BROKEN)]
        running = asyncio.gather(*beside, return_exceptions=True)
        await asyncio.sleep(0)
        engine.gate.set()
        assert [type(it) for it in await running] == [NoneType, NoneType, list, ScoringFailed]
        engine.gate.set()
        await blocking
        tracer.close()
    ids = tuple(f"{span.ids.span_id:016x}" for span in calls)
    [full, broken] = sorted((it for it in collector.spans if it.name == "batch"), key=lambda it: it.failed)
    assert (full.links, full.parent, full.attributes["tandem.batch.rows"]) == (ids, ids[0], 4)
    assert (broken.links, broken.attributes["error.type"]) == (ids[1:], "RuntimeError")
    # One for each request and batch, however many of its texts are in it.
    waits = [it for it in collector.spans if it.name == "queue"]
    expected = [(ids[0], (full.id,)), (ids[1], (full.id,)), (ids[1], (broken.id,))]
    assert sorted((it.parent, it.links) for it in waits) == sorted(expected)
    [computed] = [it for it in collector.spans if it.name == "engine"]
    assert computed.parent == full.id
    assert {it.ended for it in waits if it.links == (full.id,)} == {full.began}
    assert full.began <= computed.began < computed.ended <= full.ended


async def test_the_first_text_that_fails_ends_its_request_and_the_others_do_not_run(
    device: Device, engine: GatedEngine
) -> None:
    one = model(engine)
    blocking = await occupied(device, engine, one)
    request = asyncio.create_task(compute(device, one, BROKEN, 5, 100, seconds=5.0))
    beside = asyncio.create_task(compute(device, one, 70, seconds=10.0))
    await asyncio.sleep(0)
    engine.gate.set()
    with pytest.raises(ScoringFailed):
        await request
    # The stream got its next text first; the request's third text has left the queue, and the other request's has not.
    assert device.scheduler.queue_depth(DYNAMIC) == 1
    engine.gate.set()
    assert scores(await beside) == [70]
    assert scores(await blocking) == [8]
    assert engine.ran == [8, BROKEN, 5, 70]
    assert device.quiet.is_set()


async def test_two_texts_that_fail_end_their_request_once(device: Device, engine: GatedEngine) -> None:
    one = model(engine)
    with pytest.raises(ScoringFailed):
        await compute(device, one, BROKEN, BROKEN)
    engine.gate.set()
    assert scores(await compute(device, one, 5)) == [5]


async def test_a_deadline_ends_a_request_whose_text_still_runs(device: Device, engine: GatedEngine) -> None:
    engine.gate.clear()
    began = time.monotonic()
    with pytest.raises(DeadlineExpired):
        await compute(device, one := model(engine), 5, seconds=0.1)
    # The event loop's timers count whole milliseconds.
    assert 0.099 <= time.monotonic() - began < 5.0
    assert not device.quiet.is_set()
    engine.gate.set()
    await device.settled()
    # Its result is dropped, and the stream is free.
    assert scores(await compute(device, one, 6, seconds=5.0)) == [6]


# By the system's clock, a pause of the machine makes the batch before it late, and the request is refused.
@pytest.mark.parametrize("clock", [SimulatedClock()])
async def test_a_deadline_ends_a_request_whose_texts_wait_and_they_never_run(
    device: Device, engine: GatedEngine
) -> None:
    blocking = await occupied(device, engine, one := model(engine))
    with pytest.raises(DeadlineExpired):
        await compute(device, one, 5, 100, seconds=0.1)
    assert device.scheduler.queue_depth(DYNAMIC) == 0
    engine.gate.set()
    assert scores(await blocking) == [8]
    await device.settled()
    assert engine.ran == [8]


async def test_a_caller_that_leaves_takes_its_texts_along(device: Device, engine: GatedEngine) -> None:
    blocking = await occupied(device, engine, one := model(engine))
    leaving = asyncio.create_task(compute(device, one, 5, 100, seconds=5.0))
    await asyncio.sleep(0)
    assert device.scheduler.queue_depth(DYNAMIC) == 2
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert device.scheduler.queue_depth(DYNAMIC) == 0
    engine.gate.set()
    await blocking
    await device.settled()
    assert engine.ran == [8]


@pytest.mark.parametrize("seconds", [None, 3600.0])
async def test_nothing_holds_on_to_a_request_that_has_ended(
    device: Device, engine: GatedEngine, seconds: float | None
) -> None:
    """Else a release that was replaced would stay in memory."""
    gone, left = model(engine), model(engine)
    ends = [weakref.ref(gone), weakref.ref(left)]
    await compute(device, gone, 5, 100, seconds=seconds)
    blocking = await occupied(device, engine, gone)
    leaving = asyncio.create_task(compute(device, left, 5, 100, seconds=seconds))
    await asyncio.sleep(0)
    leaving.cancel()
    engine.gate.set()
    await asyncio.wait([blocking, leaving])
    await device.settled()
    del gone, left, blocking, leaving
    await asyncio.sleep(0.05)
    gc.collect()
    assert [end() for end in ends] == [None, None]
    # No timer keeps the request alive until its deadline in an hour.
    assert {type(it) for it in gc.get_objects() if type(it).__module__ == Device.__module__} == {Device, Ran}


async def test_a_lane_is_asked_in_vain_where_none_of_its_batches_began_since(
    device: Device, engine: GatedEngine
) -> None:
    one = model(engine)
    assert not device.take_asked_in_vain(DYNAMIC)
    device.finish_of(one, DYNAMIC, [3], real_time=False)
    assert device.take_asked_in_vain(DYNAMIC)
    assert not device.take_asked_in_vain(DYNAMIC)
    device.finish_of(one, DYNAMIC, [3], real_time=False)
    await compute(device, one, 3)
    device.finish_of(one, DYNAMIC, [3], real_time=False)
    device.finish_of(one, LATENCY, [3], real_time=False)
    assert not device.take_asked_in_vain(DYNAMIC)
    assert device.take_asked_in_vain(LATENCY)
