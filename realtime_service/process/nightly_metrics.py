"""Exports the figures of the last nightly run as metrics of the service."""

import asyncio
import json
import logging

import redis
import redis.asyncio

from realtime_service.metrics import Metrics
from shared_model.redis_store import keys

PERIOD_SECONDS = 5.0

log = logging.getLogger(__name__)


async def run(client: "redis.asyncio.Redis", metrics: Metrics) -> None:
    """Follow the last published run until cancelled."""
    while True:
        await run_once(client, metrics)
        await asyncio.sleep(PERIOD_SECONDS)


async def run_once(client: "redis.asyncio.Redis", metrics: Metrics) -> None:
    try:
        raw = await client.get(keys.last_run())
    except (redis.RedisError, OSError) as error:
        log.debug("the last nightly run could not be read: %s", error)
        return
    if raw:
        last = json.loads(raw)
        metrics.set_nightly(last["ds"], last["rows"], last["rows_per_second"], last["finished_at"])
        metrics.set_nightly_release(last["release"])
