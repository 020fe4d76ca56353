"""Exports the figures of the last nightly run as metrics of the service."""

import asyncio
import json
import logging

import redis
import redis.asyncio

from realtime_service.telemetry.metrics import Metrics
from shared_model.redis_store import keys

PERIOD_SECONDS = 5.0

log = logging.getLogger(__name__)


async def run(client: "redis.asyncio.Redis", metrics: Metrics, expected: bool | None) -> None:
    """Follow the last published run until cancelled. `expected`: whether one is to publish every day; None: once one
    has."""
    metrics.set_nightly_expected(bool(expected))
    while True:
        if await run_once(client, metrics) and expected is None:
            metrics.set_nightly_expected(True)
        await asyncio.sleep(PERIOD_SECONDS)


async def run_once(client: "redis.asyncio.Redis", metrics: Metrics) -> bool:
    """Returns whether a run has published."""
    try:
        raw = await client.get(keys.last_run())
    except (redis.RedisError, OSError) as error:
        log.debug("the last nightly run could not be read: %s", error)
        return False
    if raw:
        last = json.loads(raw)
        # A batch job of a former version stored no quarantined lines.
        figures = (last["ds"], last["rows"], last["rows_per_second"], last["finished_at"], last.get("quarantined", 0))
        metrics.set_nightly(*figures)
        metrics.set_nightly_release(last["release"])
    return bool(raw)
