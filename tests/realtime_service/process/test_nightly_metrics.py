"""The figures of the last published night become metrics, and also its release, which alerts compare."""

import json
import re
from pathlib import Path

import redis.asyncio
import yaml

from realtime_service.metrics import Metrics
from realtime_service.process import nightly_metrics
from shared_model.redis_store import keys

ALERTS = Path(__file__).parents[3] / ".deploy" / "prometheus" / "alerts.yml"


async def test_the_last_nights_release_is_a_metric(own_redis: "redis.asyncio.Redis") -> None:
    metrics = Metrics([])
    for release, other in (("one", "two"), ("two", "one")):
        run = {"ds": "2026-01-14", "rows": 5, "rows_per_second": 2.5, "finished_at": 7.0, "release": release}
        await own_redis.set(keys.last_run(), json.dumps(run))
        await nightly_metrics.run_once(own_redis, metrics)
        value = metrics.registry.get_sample_value
        assert value("tandem_nightly_release_info", {"release": release}) == 1
        assert value("tandem_nightly_release_info", {"release": other}) is None
        assert value("tandem_nightly_rows", {"ds": "2026-01-14"}) == 5


def test_an_alert_compares_it_with_what_is_served() -> None:
    """Part of the promtool test alerts.test.yml, without promtool."""
    rules = {rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
    rule = rules["NightlyReleaseDiffers"]
    assert re.findall(r"tandem_\w+", rule["expr"]) == ["tandem_nightly_release_info", "tandem_release_info"]
    assert rule["for"] == "26h"
