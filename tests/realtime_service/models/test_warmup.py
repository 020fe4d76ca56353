"""Admission control uses the times of the warm-up, so one call that a busy machine delayed must not count."""

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from realtime_service.models import warmup
from realtime_service.models.latency_budgets import time_call
from realtime_service.models.warmup import SPECIALISED_TOKENS, WarmVariant, Width
from shared_model.encoding import InputSpec, TokenBatch, coarse_buckets
from shared_model.engine import Engine
from shared_model.evaluation.benchmark import Budget
from shared_model.releases.store import Release
from shared_model.types import Device, Precision

#: Seconds of a usual call, and of one that was delayed.
USUAL, HELD_UP = 0.002, 0.200


class Machine:
    """An engine, and the clock that it advances: the first call of every shape is delayed."""

    precision = Precision.INT8
    streams = 1

    def __init__(self) -> None:
        self.now = 0.0
        self.known = set[object]()
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
        self.now += USUAL if call in self.known else HELD_UP
        self.known.add(call)
        return np.zeros((batch.rows, 2), np.float32)

    def close(self) -> None:
        """Nothing to free."""


def test_a_call_that_was_held_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, reads = Machine(), InputSpec(256)
    monkeypatch.setattr(warmup, "time", machine)
    fake: Any = SimpleNamespace(id="any", manifest=SimpleNamespace(reads=reads), heads=SimpleNamespace(width=2))
    fake.engine = lambda *asked: machine
    release = cast(Release, fake)
    variant = warmup.open_variant(release, Precision.INT8, Device.CPU, Width(1, 1), lambda: None)
    warmup.warm_batches(variant, release, lambda: None)
    warmup.specialise(variant, release, True, lambda: None)
    assert machine.specialised == list(SPECIALISED_TOKENS)
    for latency in (variant.latency, variant.single_latency):
        singles = [latency.narrow.predict(1, tokens) for tokens in coarse_buckets(reads.max_tokens)]
        assert singles == pytest.approx([USUAL] * len(singles))
    assert variant.latency.narrow.predict(4, 16) == pytest.approx(USUAL)


@pytest.mark.parametrize(("tokens", "on_all_cores"), [(16, True), (32, False)])
def test_a_latency_budget_is_timed_on_the_engine_that_its_lane_runs(tokens: int, on_all_cores: bool) -> None:
    """An engine of all cores is compiled for short texts; any other would compile a whole graph that no call runs."""
    narrow, wide = Machine(), Machine()
    any_model: Any = None
    variant = WarmVariant(cast(Engine, narrow), cast(Engine, wide), any_model, any_model)
    time_call(variant, InputSpec(256), Budget(1, tokens, 10.0, "TANDEM_GATE_LATENCY_MS"), lambda: None)
    assert (bool(wide.known), bool(narrow.known)) == (on_all_cores, not on_all_cores)
