"""Latency budgets are judged on the host that serves: measured again and again, and no promotion makes a lane slow."""

import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from protos.scoring.v1 import scoring_pb2
from realtime_service.client import Client
from realtime_service.models.latency_budgets import PERIOD_SECONDS, Timing
from realtime_service.models.registry import Model, Models
from realtime_service.models.warmup import WarmVariant
from realtime_service.rollout.latency_watch import LatencyWatch
from realtime_service.rollout.loader import Loader
from realtime_service.scheduling.latency_model import LatencyModel, VariantLatency
from realtime_service.settings import ServiceSettings, lanes
from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import SimulatedClock
from shared_model.commands import await_replicas
from shared_model.encoding import InputSpec, TokenBatch
from shared_model.evaluation.benchmark import Budget
from shared_model.redis_store import clients
from shared_model.releases.store import Release
from shared_model.types import Device, Precision, ServingPath
from tests.realtime_service.conftest import RunningService, eventually
from tests.realtime_service.rollout import tiny_releases
from tests.realtime_service.rollout.stage import WAYS, Stage, staged, wait_for_failure
from tests.realtime_service.rollout.test_keeping import model

#: A tiny release takes less than a millisecond, one that is slow in full batches several times as long.
BETWEEN = "25"


class Host:
    """A watch on a simulated clock, and a loader that finds `milliseconds` for a BF16 batch; None: the engine fails."""

    def __init__(self) -> None:
        self.milliseconds: float | None = 100.0
        self.measured = self.recalibrated = 0
        self.clock = SimulatedClock()
        self.metrics = Metrics(())
        served = lanes(ServiceSettings(), Device.CPU)
        self.watch = LatencyWatch(Models.of(model("a")), cast(Loader, self), served, self.metrics, self.clock)

    async def measure(self, model: Model) -> None:
        self.measured += 1
        if self.milliseconds is None:
            raise RuntimeError("the engine failed")
        budget = Budget(64, 32, 500.0, "TANDEM_GATE_BATCH_MS")
        model.timings[Precision.BF16] = Timing(self.milliseconds, budget, self.milliseconds > 500)

    async def recalibrate(self, model: Model) -> None:
        self.recalibrated += 1
        if self.milliseconds is None:
            raise RuntimeError("the engine failed")

    def slow(self, path: ServingPath) -> float | None:
        return self.metrics.registry.get_sample_value("tandem_lane_slow", {"path": path})


async def test_what_answers_is_measured_at_once_and_every_ten_minutes() -> None:
    host = Host()
    await host.watch.run_once()
    assert (host.measured, host.slow(ServingPath.THROUGHPUT)) == (1, 0)
    assert host.slow(ServingPath.LATENCY) is None  # INT8 was not measured
    host.milliseconds = 860.0
    host.clock.advance(PERIOD_SECONDS - 1)
    await host.watch.run_once()
    assert (host.measured, host.slow(ServingPath.THROUGHPUT)) == (1, 0)
    host.clock.advance(1)
    await host.watch.run_once()
    assert (host.measured, host.slow(ServingPath.THROUGHPUT)) == (2, 1)
    assert host.recalibrated == 3


async def test_a_measurement_that_fails_leaves_the_replica_and_its_mark(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    host.milliseconds = 860.0
    await host.watch.run_once()
    host.milliseconds = None
    host.clock.advance(PERIOD_SECONDS)
    await host.watch.run_once()
    assert (host.measured, host.slow(ServingPath.THROUGHPUT)) == (2, 1)
    assert "timing a failed" in caplog.text
    assert "recalibrating a failed" in caplog.text


def lane(client: Client, name: str) -> scoring_pb2.LaneDescription:
    (found,) = [it for it in client.describe().lanes if it.name == name]
    return found


def wait_until_measured(replica: RunningService, client: Client) -> None:
    """Until every lane was measured, and the metrics say so."""
    eventually(lambda: all(it.call_ms for it in client.describe().lanes))
    # Our own loopback address.
    eventually(lambda: b"tandem_lane_slow{" in urllib.request.urlopen(replica.metrics).read())  # noqa: S310


def seal_slow(stage: Stage) -> Release:
    graph = tiny_releases.embedding(tiny_releases.table(favourite=3), tiny_releases.slow_in_full_batches)
    return tiny_releases.seal_graph(stage.store, "slow", graph)


@pytest.mark.heavy
def test_a_promotion_that_makes_a_lane_slow_is_refused_and_a_restart_with_it_serves(tmp_path: Path) -> None:
    with staged(tmp_path, TANDEM_GATE_BATCH_MS=BETWEEN) as stage, Client(stage.replica.address) as client:
        wait_until_measured(stage.replica, client)
        (first,) = stage.favourites
        assert not lane(client, "throughput").slow_here
        slow = seal_slow(stage)
        stage.promote(slow)
        why = wait_for_failure(client, slow)
        assert why.startswith(f"it is slow here, and {first} is not: bf16 takes ")
        assert why.endswith(f" ms for 64×32 tokens here, its lane allows {BETWEEN} ms (TANDEM_GATE_BATCH_MS)")
        assert client.score("card").release == first
        # A replica that starts with it has nothing better: all its lanes answer.
        again = stage.another_replica("again", TANDEM_GATE_BATCH_MS=BETWEEN)
        with Client(again.address) as other:
            wait_until_measured(again, other)
            assert [(it.name, it.slow_here) for it in other.describe().lanes if it.serving] == [
                ("latency", False), ("dynamic", False), ("throughput", True), ("deferred", True)
            ]  # fmt: skip
            assert {other.score("card", release=slow.id, **way).release for way in WAYS} == {slow.id}
            with clients.connect(stage.redis.url, 5.0, 5.0) as redis_client:
                eventually(
                    lambda: {tuple(it.slow_lanes) for it in await_replicas.read(redis_client)} == {(), ("throughput",)}
                )
        assert again.stop() == 0


class Instant:
    """An engine that answers at once."""

    def score(self, batch: TokenBatch, single: bool = False) -> NDArray[np.float32]:
        assert single
        return np.zeros((batch.rows, 2), np.float32)


@pytest.mark.parametrize("in_vain", [True, False])
async def test_a_lane_that_predicts_too_long_times_learns_that_its_host_is_fast_again(in_vain: bool) -> None:
    """Else it would never take a request again: only those that it takes recalibrate it."""
    served = lanes(ServiceSettings(), Device.CPU)
    devices = SimpleNamespace(
        lanes=served,
        take_asked_in_vain=lambda path: in_vain and path is ServingPath.LATENCY,
        wait_for_quiet=lambda seconds: None,
    )
    latency = VariantLatency(LatencyModel(0.0, 0.0, 0.0, {16: 0.080, 32: 0.100}))
    other = VariantLatency(LatencyModel(0.0, 0.0, 0.0, {16: 0.080}))
    nothing, encoder = cast(Any, None), cast(Any, SimpleNamespace(reads=InputSpec(max_tokens=64)))
    variant = WarmVariant(cast(Any, Instant()), None, other, latency)
    active = replace(model("a"), encoder=encoder, engines={Precision.INT8: variant})
    loader = Loader(nothing, {}, 1, 1.0, cast(Any, devices), nothing, nothing, {})
    for _ in range(6):
        await loader.recalibrate(active)
    loader.close()
    assert (latency.narrow.predict(1, 16) < 0.030) == in_vain
    assert (latency.narrow.predict(1, 32) < 0.050) == in_vain
    assert other.narrow.predict(1, 16) == 0.080
