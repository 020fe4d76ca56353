"""Exports the figures and verdicts of the last nightly runs as metrics of the service."""

import asyncio
import json
import logging
from typing import Any

import redis
import redis.asyncio

from realtime_service.telemetry.metrics import Metrics
from shared_model.redis_store import keys

PERIOD_SECONDS = 5.0

log = logging.getLogger(__name__)


async def run(client: "redis.asyncio.Redis", metrics: Metrics, expected: bool | None) -> None:
    """Follow the last published run until cancelled. `expected`: whether one is to publish every day; None: once one
    has."""
    metrics.nights.set_expected(bool(expected))
    while True:
        if await run_once(client, metrics) and expected is None:
            metrics.nights.set_expected(True)
        await asyncio.sleep(PERIOD_SECONDS)


async def run_once(client: "redis.asyncio.Redis", metrics: Metrics) -> bool:
    """Returns whether a run has published."""
    if last := await _read(client, keys.last_run()):
        # A batch job of a former version stored no quarantined lines.
        figures = (last["ds"], last["rows"], last["rows_per_second"], last["finished_at"], last.get("quarantined", 0))
        metrics.nights.set_published(*figures)
        metrics.nights.set_release(last["release"])
    if verdicts := await _read(client, keys.last_verdicts()):
        metrics.nights.set_verdicts(verdicts["ds"], verdicts["outcomes"])
    return last is not None


async def _read(client: "redis.asyncio.Redis", key: str) -> Any:
    """None where nothing is there, or where it could not be read: also by the rules that Redis has of a former version,
    which allow one of the two."""
    try:
        raw = await client.get(key)
    except (redis.RedisError, OSError) as error:
        log.debug("%s could not be read: %s", key, error)
        return None
    return json.loads(raw) if raw else None
