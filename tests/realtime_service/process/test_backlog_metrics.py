"""The deferred work that waits, its earliest deadline and its age become metrics."""

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


async def exported(queue: DeferredQueue) -> tuple[Any, Any, Any]:
    """Requests that wait, the deadline, and when the oldest was accepted."""
    metrics, clock = Metrics([]), SystemClock()
    metrics.set_backlog(-1, 0, 0)
    following = asyncio.create_task(backlog_metrics.run(queue, metrics, clock))
    await until(lambda: shown(metrics)[0] != -1)
    following.cancel()
    return shown(metrics)


def shown(metrics: Metrics) -> tuple[Any, Any, Any]:
    names = ("waiting", "deadline_timestamp_seconds", "oldest_timestamp_seconds")
    waiting, due, oldest = (metrics.registry.get_sample_value(f"tandem_deferred_{name}") for name in names)
    return waiting, due, oldest


def test_before_the_store_has_answered_nothing_is_due() -> None:
    assert shown(Metrics([])) == (0, math.inf, math.inf)


async def test_what_waits_and_when_it_is_due_are_exported(own_redis: "redis.asyncio.Redis") -> None:
    queue = DeferredQueue(own_redis)
    assert await exported(queue) == (0, math.inf, math.inf)
    await queue.submit("soon", work("a"), deliver_within_ms=60_000)
    await queue.submit("later", work("b"), deliver_within_ms=600_000)
    waiting, due, oldest = await exported(queue)
    assert waiting == 2
    assert abs(due - (SystemClock().wall() + 60)) < 10
    assert abs(oldest - SystemClock().wall()) < 10
