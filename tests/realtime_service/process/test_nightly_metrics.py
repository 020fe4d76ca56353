"""The figures of the last published night become metrics, and also its release, which alerts compare."""

import asyncio
import functools
import json
from typing import Any

import pytest
import redis.asyncio

from realtime_service.process import nightly_metrics
from realtime_service.settings import ServiceSettings
from realtime_service.telemetry.metrics import Metrics
from shared_model.redis_store import keys
from tests.realtime_service.cluster.directory import until

RUN: dict[str, Any] = {
    "ds": "2026-01-14",
    "rows": 5,
    "rows_per_second": 2.5,
    "quarantined": 3,
    "finished_at": 7.0,
    "release": "one",
}


async def test_the_last_nights_release_is_a_metric(own_redis: "redis.asyncio.Redis") -> None:
    metrics = Metrics([])
    for release, other in (("one", "two"), ("two", "one")):
        run = {**RUN, "release": release}
        await own_redis.set(keys.last_run(), json.dumps(run))
        assert await nightly_metrics.run_once(own_redis, metrics)
        value = metrics.registry.get_sample_value
        assert value("tandem_nightly_release_info", {"release": release}) == 1
        assert value("tandem_nightly_release_info", {"release": other}) is None
        assert value("tandem_nightly_rows", {"ds": "2026-01-14"}) == 5
        assert value("tandem_nightly_quarantined_rows", {"ds": "2026-01-14"}) == 3


async def test_the_last_verdicts_are_metrics_also_of_a_day_that_was_refused(own_redis: "redis.asyncio.Redis") -> None:
    metrics = Metrics([])

    def outcomes() -> set[tuple[str, str, str]]:
        (family,) = [it for it in metrics.registry.collect() if it.name == "tandem_nightly_gate_info"]
        return {(it.labels["ds"], it.labels["gate"], it.labels["outcome"]) for it in family.samples}

    for ds, outcome in (("2026-01-14", "ok"), ("2026-01-15", "fail")):
        await own_redis.set(keys.last_verdicts(), json.dumps({"ds": ds, "outcomes": {"labels": outcome}}))
        assert not await nightly_metrics.run_once(own_redis, metrics)
        assert outcomes() == {(ds, "labels", outcome)}


@pytest.mark.parametrize(
    ("said", "before", "after"), [("auto", 0, 1), ("no", 0, 0), ("yes", 1, 1)], ids=["auto", "online only", "nightly"]
)
async def test_a_night_is_expected_where_one_is_configured_or_has_been(
    own_redis: "redis.asyncio.Redis", said: str, before: int, after: int
) -> None:
    metrics, expected = Metrics([]), ServiceSettings(nightly_expected=said).expects_nightly
    value = functools.partial(metrics.registry.get_sample_value, "tandem_nightly_expected")
    following = asyncio.create_task(nightly_metrics.run(own_redis, metrics, expected))
    await until(lambda: value() == before)
    following.cancel()
    await own_redis.set(keys.last_run(), json.dumps({**RUN, "release": "one"}))
    following = asyncio.create_task(nightly_metrics.run(own_redis, metrics, expected))
    await until(lambda: metrics.registry.get_sample_value("tandem_nightly_rows", {"ds": RUN["ds"]}) == 5)
    await until(lambda: value() == after)
    following.cancel()


async def test_a_run_of_a_former_version_has_no_quarantined_lines(own_redis: "redis.asyncio.Redis") -> None:
    metrics = Metrics([])
    await own_redis.set(keys.last_run(), json.dumps({k: v for k, v in RUN.items() if k != "quarantined"}))
    assert await nightly_metrics.run_once(own_redis, metrics)
    assert metrics.registry.get_sample_value("tandem_nightly_quarantined_rows", {"ds": "2026-01-14"}) == 0
