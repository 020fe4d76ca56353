"""The deferred work that waits, and its earliest deadline, become metrics."""

import asyncio
import math
from typing import Any

import redis.asyncio

from realtime_service.process import backlog_metrics
from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import SystemClock
from shared_model.deferred import DeferredQueue
from tests.realtime_service.cluster.directory import until
from tests.shared_model.deferred.test_store import work


async def exported(queue: DeferredQueue) -> tuple[Any, Any]:
    """Requests that wait, and the deadline."""
    metrics, clock = Metrics([]), SystemClock()
    following = asyncio.create_task(backlog_metrics.run(queue, metrics, clock))
    value = metrics.registry.get_sample_value
    await until(lambda: value("tandem_deferred_deadline_timestamp_seconds") != 0)
    following.cancel()
    return value("tandem_deferred_waiting"), value("tandem_deferred_deadline_timestamp_seconds")


async def test_what_waits_and_when_it_is_due_are_exported(own_redis: "redis.asyncio.Redis") -> None:
    queue = DeferredQueue(own_redis)
    assert await exported(queue) == (0, math.inf)
    await queue.submit("soon", work("a"), deliver_within_ms=60_000)
    await queue.submit("later", work("b"), deliver_within_ms=600_000)
    waiting, due = await exported(queue)
    assert waiting == 2
    assert abs(due - (SystemClock().wall() + 60)) < 10
