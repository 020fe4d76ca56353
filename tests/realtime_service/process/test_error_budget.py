"""The error budget in a real Redis: replicas add to one sum, and each window forgets what is older."""

from collections import Counter
from datetime import UTC, datetime

import redis.asyncio

from realtime_service.process import error_budget
from realtime_service.telemetry.metrics.service_levels import Totals
from shared_model.redis_store import keys

#: Two minutes after an hour and a day began.
NOW = datetime(2026, 1, 14, 0, 2, 30, tzinfo=UTC).timestamp()
MINUTE, DAY = 60.0, 86_400.0


def totals(met: int, late: int) -> Totals:
    return Totals(
        0.0, Counter({("latency", "met"): met, ("latency", "late"): late, ("latency", "invalid"): 9}), Counter()
    )


async def add(client: "redis.asyncio.Redis", before: Totals | None, now: Totals, wall: float) -> None:
    async with client.pipeline() as pipe:
        error_budget.add(pipe, error_budget.grown(before, now), wall)
        await pipe.execute()


async def read(client: "redis.asyncio.Redis", wall: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """The latency lane's last hour, and its 28 days."""
    days, hours = [[await client.hgetall(keys.error_budget(it)) for it in part] for part in error_budget.periods(wall)]
    return error_budget.of_hour(hours, wall)["latency"], error_budget.of_days(days)["latency"]


async def test_replicas_add_to_one_budget_and_windows_end(own_redis: "redis.asyncio.Redis") -> None:
    first, second = totals(8, 2), totals(17, 3)
    await add(own_redis, None, first, NOW)
    await add(own_redis, first, second, NOW)
    await add(own_redis, None, totals(5, 0), NOW)
    assert await read(own_redis, NOW) == ((3, 25), (3, 25))
    # The hour is counted by minute: 59 later it is there still, 60 later no more.
    assert await read(own_redis, NOW + 59 * MINUTE) == ((3, 25), (3, 25))
    assert await read(own_redis, NOW + 60 * MINUTE) == ((0, 0), (3, 25))
    assert await read(own_redis, NOW + 27 * DAY) == ((0, 0), (3, 25))
    assert await read(own_redis, NOW + 28 * DAY) == ((0, 0), (0, 0))


async def test_what_is_counted_expires_by_itself(own_redis: "redis.asyncio.Redis") -> None:
    await add(own_redis, None, totals(1, 0), NOW)
    assert 28 * DAY < await own_redis.ttl(keys.error_budget("2026-01-14")) <= 29 * DAY
    assert 2 * 60 * MINUTE < await own_redis.ttl(keys.error_budget("2026-01-14T00")) <= 3 * 60 * MINUTE


async def test_nothing_is_written_where_nothing_ended(own_redis: "redis.asyncio.Redis") -> None:
    await add(own_redis, totals(4, 1), totals(4, 1), NOW)
    assert await own_redis.keys("*") == []
