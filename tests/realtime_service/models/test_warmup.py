"""Admission control uses the times of the warm-up, so one call that a busy machine delayed must not count."""

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from realtime_service.models import warmup
from realtime_service.models.latency_budgets import time_call
from realtime_service.models.warmup import SPECIALISED_TOKENS, WIDE_TOKENS, WarmVariant, Width
from realtime_service.scheduling.latency_model import LatencyModel, VariantLatency
from realtime_service.scheduling.scheduler import BULK, INTERACTIVE
from realtime_service.settings import ServiceSettings, lanes
from shared_model import settings as environment
from shared_model.batches import Batch, Running
from shared_model.encoding import InputSpec, TokenBatch, coarse_buckets
from shared_model.engine import Engine
from shared_model.engines.torch_graphs import MOST_GRAPHS
from shared_model.engines.whole_device import WholeDevice
from shared_model.errors import ReleaseError
from shared_model.evaluation.benchmark import Budget
from shared_model.releases.store import Release
from shared_model.types import Device, Precision, ServingPath

#: Seconds of a usual call, and of one that was delayed.
USUAL, HELD_UP = 0.002, 0.200


class Machine:
    """An engine, and the clock that it advances: the first call of every shape is delayed. `beside`: its engine of bulk
    work, on the same clock, and twice as slow."""

    precision = Precision.INT8
    streams = 1

    def __init__(self, bulk: "Machine | None" = None) -> None:
        self.now, self.open = 0.0, True
        self.bulk, self.clock, self.usual = bulk, self, USUAL
        if bulk:
            bulk.clock, bulk.usual = self, 2 * USUAL
        self.calls = set[tuple[tuple[int, ...], bool]]()
        self.specialised: list[int] = []

    def perf_counter(self) -> float:
        return self.now

    def rows(self, tokens: int, single: bool = False) -> Sequence[int]:
        return (1, 2) if single else (1, 4)

    def specialise(self, tokens: int, pairs: bool = False) -> None:
        self.specialised.append(tokens)

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Takes no time."""

    def score(self, batch: TokenBatch, single: bool = False) -> NDArray[np.float32]:
        call = (batch.ids.shape, single)
        self.clock.now += self.usual if call in self.calls else HELD_UP
        self.calls.add(call)
        return np.zeros((batch.rows, 2), np.float32)

    def beside(self) -> "Machine | None":
        return self.bulk

    def close(self) -> None:
        self.open = False


def opening(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Release:
    """A release whose engine is this machine."""
    monkeypatch.setattr(warmup, "time", machine)
    heads, manifest = SimpleNamespace(width=2), SimpleNamespace(reads=InputSpec(256))
    fake: Any = SimpleNamespace(id="any", manifest=manifest, heads=heads, engine=lambda *asked: machine)
    return cast(Release, fake)


def test_a_call_that_was_held_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, reads = Machine(), InputSpec(256)
    release = opening(machine, monkeypatch)
    variant = warmup.open_variant(release, Precision.INT8, Device.CPU, Width(1, 1), lambda: None)
    warmup.warm_batches(variant, release, lambda: None)
    warmup.specialise(variant, release, True, lambda: None)
    assert machine.specialised == list(SPECIALISED_TOKENS)
    for latency in (variant.latency, variant.single_latency):
        singles = [latency.narrow.predict(1, tokens) for tokens in coarse_buckets(reads.max_tokens)]
        assert singles == pytest.approx([USUAL] * len(singles))
    assert variant.latency.narrow.predict(4, 16) == pytest.approx(USUAL)


def test_the_widths_of_most_texts_are_compiled_for_all_cores_too(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow, wide = Machine(), Machine()
    release, alike = opening(narrow, monkeypatch), VariantLatency(LatencyModel(0.0, 0.0, 0.0), rows=narrow.rows)
    latency = alike.copy(LatencyModel.of_singles(), narrow.rows)
    variant = WarmVariant(cast(Engine, narrow), cast(Engine, wide), latency, latency)
    warmup.specialise(variant, release, False, lambda: None)
    assert (narrow.specialised, wide.specialised) == (list(SPECIALISED_TOKENS), list(WIDE_TOKENS))


def test_a_graph_is_timed_before_the_next_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, timed = Machine(), list[list[int]]()
    release = opening(machine, monkeypatch)
    variant = warmup.open_variant(release, Precision.INT8, Device.CPU, Width(1, 1), lambda: None)

    def compiled(tokens: int, pairs: bool) -> None:
        timed.append(sorted({shape[1] for shape, single in machine.calls if single}))

    monkeypatch.setattr(machine, "specialise", compiled)
    warmup.specialise(variant, release, True, lambda: None)
    assert timed == [[], [8, 16]]


def test_bulk_work_of_a_gpu_has_an_engine_and_predictions_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    urgent = Machine(bulk := Machine())
    release, beside = opening(urgent, monkeypatch), Width(1, 1, beside=1)
    variant = warmup.open_variant(release, Precision.FP16, Device.CUDA, beside, lambda: None)
    warmup.warm_batches(variant, release, lambda: None)
    table = lanes(ServiceSettings(), Device.CUDA)
    for path in (ServingPath.DYNAMIC, *BULK):
        usual = 2 * USUAL if path in BULK else USUAL
        for rows in (1, 4):
            assert variant.latency_of(table[path]).narrow.predict(rows, 16) == pytest.approx(usual)
    variant.close()
    assert (urgent.open, bulk.open) == (False, False)


def test_no_engine_stays_open_where_that_of_bulk_work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    urgent = Machine(bulk := Machine())
    monkeypatch.setattr(bulk, "score", lambda batch, single: np.full((batch.rows, 2), np.nan, np.float32))
    release = opening(urgent, monkeypatch)
    with pytest.raises(ReleaseError, match="not finite"):
        warmup.open_variant(release, Precision.FP16, Device.CUDA, Width(1, 1, beside=1), lambda: None)
    assert (urgent.open, bulk.open) == (False, False)


@pytest.mark.parametrize(("tokens", "on_all_cores"), [(16, True), (32, False)])
def test_a_latency_budget_is_timed_on_the_engine_that_its_lane_runs(tokens: int, on_all_cores: bool) -> None:
    """An engine of all cores is compiled for short texts; any other would compile a whole graph that no call runs."""
    narrow, wide = Machine(), Machine()
    any_model: Any = None
    variant = WarmVariant(cast(Engine, narrow), cast(Engine, wide), any_model, any_model)
    time_call(variant, InputSpec(256), Budget(1, tokens, 10.0, "TANDEM_GATE_LATENCY_MS"), lambda: None)
    assert (bool(wide.calls), bool(narrow.calls)) == (on_all_cores, not on_all_cores)


class AnyShape(WholeDevice):
    """An engine of a GPU, which records what it is warmed for."""

    def start(self, batch: Batch) -> Running:
        raise NotImplementedError


@pytest.mark.parametrize("max_tokens", [256, 512])
def test_a_gpu_records_each_shape_of_interactive_batches(max_tokens: int) -> None:
    engine, reads = AnyShape(), InputSpec(max_tokens)
    warmed = {*warmup.single_shapes(reads), *warmup.batch_shapes(engine, reads)}  # type: ignore[arg-type]
    latency = VariantLatency(LatencyModel(0.001, 0.0, 0.0), rows=engine.rows)
    table = lanes(environment.load(ServiceSettings, {"TANDEM_LATENCY_PRECISION": "half"}), Device.CUDA)
    for lane in (table[path] for path in INTERACTIVE):
        for tokens in coarse_buckets(max_tokens):
            for queued in range(1, lane.max_rows + 1):
                assert (latency.rows_below(min(queued, lane.rows(tokens)), tokens), tokens) in warmed
    assert len(warmed) <= MOST_GRAPHS
