"""The state of a process as metrics: the age of its epoch, the end of its certificate, and a loop that stands still."""

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from realtime_service.execution.device import Ran
from realtime_service.process import vital_signs
from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import SystemClock
from shared_model.redis_store import clients
from shared_model.tls import CertificateFiles
from shared_model.types import ServingPath
from tests.certified import certified
from tests.realtime_service.cluster.directory import until

LATENCY = ServingPath.LATENCY


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
    ends = [value("tandem_certificate_expiry_timestamp_seconds", {"of": it}) for it in ("listeners", "redis")]
    assert ends == [files.current().ends, 0.0]
    assert files.current().ends > time.time()
    running.cancel()


async def test_the_end_of_the_certificate_of_redis_is_exported_and_stays_while_redis_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics, asked = Metrics([]), list[str]()

    def read(url: str, timeout: float) -> float:
        asked.append(url)
        if len(asked) == 1:
            return 1_800_000_000.0
        raise redis.ConnectionError("away") if len(asked) % 2 else OSError("away")

    monkeypatch.setattr(clients, "certificate_end", read)
    monkeypatch.setattr(vital_signs, "CERTIFICATE_PERIOD_SECONDS", 0.0)
    watching = asyncio.create_task(vital_signs.watch_redis_certificate("rediss://redis:6379", metrics))
    await until(lambda: len(asked) > 3)
    value = metrics.registry.get_sample_value
    assert value("tandem_certificate_expiry_timestamp_seconds", {"of": "redis"}) == 1_800_000_000
    assert set(asked) == {"rediss://redis:6379"}
    watching.cancel()


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


def status_of(warm: bool, ran: tuple[Ran, ...] = ()) -> Any:
    """A replica with a latency lane, whose device has run this since it was asked last."""
    left, lane = list(ran), SimpleNamespace(assumed_timeout=0.25)
    device = SimpleNamespace(
        lanes={LATENCY: lane},
        typical=lambda *_: (0.025, 0.02, 0.004) if warm else None,
        take_ran=lambda _: left.pop() if left else Ran(),
        queue_depth=lambda _: 3,
        utilisation_of=lambda _: 0.5,
    )
    models = SimpleNamespace(serving=SimpleNamespace(models={"a": "a"}), active="a", published=lambda: [])
    return SimpleNamespace(device=device, models=models)


@pytest.mark.parametrize(
    ("warm", "target", "found"),
    [(True, 0.05, (0.5, 250.0)), (True, 0.0, (0.1, 250.0)), (False, 0.05, None)],
    ids=["p95", "none", "cold"],
)
def test_lateness_is_a_share_of_the_lanes_target(warm: bool, target: float, found: tuple[float, float] | None) -> None:
    """Of the timeout that is assumed, where the lane has no target; nothing before it is warm."""
    status = status_of(warm)
    assert vital_signs.pace(status, LATENCY, target) == (found and pytest.approx(found))
    status.models.serving.models = {}
    assert vital_signs.pace(status, LATENCY, target) is None


async def test_a_lane_tells_its_capacity_and_what_its_device_ran() -> None:
    metrics, status = Metrics([]), status_of(True, (Ran(0.25, 30, 34),))
    policy = SimpleNamespace(targets={LATENCY: 0.05})
    membership: Any = SimpleNamespace(snapshot=SimpleNamespace(redis_available=True, policy=policy))
    running = asyncio.create_task(vital_signs.run(status, membership, None, metrics))

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(f"tandem_{name}", {"path": "latency"})

    await until(lambda: value("padding_tokens_total") is not None)
    assert (value("waiting"), value("load"), value("predicted_lateness_ratio")) == (3, 0.5, 0.5)
    assert value("lane_capacity_texts_per_second") == 250
    assert value("device_busy_seconds_total") == 0.25
    assert (value("tokens_total"), value("padding_tokens_total")) == (30, 34)
    running.cancel()
