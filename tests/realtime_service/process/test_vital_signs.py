"""The state of a process as metrics: the age of its epoch, the end of its certificate, and a loop that stands still."""

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from realtime_service.process import vital_signs
from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import SystemClock
from shared_model.tls import CertificateFiles
from shared_model.types import ServingPath
from tests.certified import certified
from tests.realtime_service.cluster.directory import until


def published(release: str, epoch: str) -> Any:
    return SimpleNamespace(release=release, epoch=epoch)


async def test_epochs_and_certificate_are_exported(tmp_path: Path) -> None:
    metrics, epochs = Metrics([]), [published("one-1", "2026-01-14.3"), published("two-1", "")]
    models = SimpleNamespace(published=lambda: epochs)
    status: Any = SimpleNamespace(device=SimpleNamespace(lanes={}), models=models)
    membership: Any = SimpleNamespace(snapshot=SimpleNamespace(redis_available=True))
    files = CertificateFiles(certified(tmp_path).settings())
    running = asyncio.create_task(vital_signs.run(status, membership, files, metrics))
    value = metrics.registry.get_sample_value
    await until(lambda: value("tandem_redis_up") == 1)
    began = datetime(2026, 1, 14, tzinfo=UTC).timestamp()
    assert value("tandem_epoch_day_timestamp_seconds", {"release": "one-1"}) == began
    assert value("tandem_epoch_day_timestamp_seconds", {"release": "two-1"}) is None
    assert value("tandem_certificate_expiry_timestamp_seconds") == files.current().ends > time.time()
    running.cancel()


async def test_a_loop_that_stands_still_is_measured() -> None:
    metrics = Metrics([])
    value = metrics.registry.get_sample_value
    watching = asyncio.create_task(vital_signs.watch_loop(metrics, SystemClock()))
    await until(lambda: (value("tandem_event_loop_lag_seconds_count") or 0) >= 1)
    assert value("tandem_event_loop_lag_seconds_bucket", {"le": "+Inf"}) == value("tandem_event_loop_lag_seconds_count")
    before = value("tandem_event_loop_lag_seconds_sum")
    time.sleep(0.3)  # noqa: ASYNC251 - the loop is to stand still
    count = value("tandem_event_loop_lag_seconds_count")
    await until(lambda: value("tandem_event_loop_lag_seconds_count") != count)
    assert (value("tandem_event_loop_lag_seconds_sum") or 0) - (before or 0) >= 0.15
    watching.cancel()


@pytest.mark.parametrize(
    ("warm", "target", "share"), [(True, 0.05, 0.5), (True, 0.0, 0.1), (False, 0.05, None)], ids=["p95", "none", "cold"]
)
def test_lateness_is_a_share_of_the_lanes_target(warm: bool, target: float, share: float | None) -> None:
    """Of the timeout that is assumed, where the lane has no target; nothing before it is warm."""
    lane = SimpleNamespace(assumed_timeout=0.25)
    device = SimpleNamespace(lanes={"latency": lane}, typical=lambda *_: (0.025, 0.02, 0.003) if warm else None)
    models = SimpleNamespace(serving=SimpleNamespace(models={"a": "a"}), active="a")
    status: Any = SimpleNamespace(device=device, models=models)
    assert vital_signs.lateness(status, ServingPath.LATENCY, target) == (share and pytest.approx(share))
    models.serving.models = {}
    assert vital_signs.lateness(status, ServingPath.LATENCY, target) is None
