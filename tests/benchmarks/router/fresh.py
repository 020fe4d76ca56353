"""python -m tests.benchmarks.router.fresh REDIS: keeps the heartbeats of all replicas but one fresh, each different."""

import asyncio
import random
import sys
from collections.abc import Sequence

import redis.asyncio

from realtime_service.cluster.heartbeat import PERIOD_SECONDS
from realtime_service.cluster.heartbeat_trust import HeartbeatTrust
from realtime_service.cluster.membership import TTL_MS
from shared_model.clock import SystemClock
from shared_model.redis_store import keys
from tests.benchmarks.router import fleet
from tests.load import child

Heartbeats = Sequence[HeartbeatTrust]


async def beat(client: "redis.asyncio.Redis", draw: random.Random, heartbeats: Heartbeats) -> None:
    async with client.pipeline(transaction=False) as pipe:
        for number, state in enumerate(fleet.states(draw, fleet.REPLICAS - 1)):
            pipe.set(keys.replica(fleet.name(number)), heartbeats[number].write(state), px=2 * TTL_MS)
            pipe.sadd(keys.replicas(), fleet.name(number))
        await pipe.execute()


async def run(redis_url: str) -> None:
    draw = random.Random(6)
    heartbeats = [HeartbeatTrust(fleet.KEYS, SystemClock()) for _ in range(fleet.REPLICAS)]
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        await beat(client, draw, heartbeats)
        asked = asyncio.create_task(asyncio.to_thread(child.answer, {}, dict))
        while not asked.done():
            await beat(client, draw, heartbeats)
            await asyncio.wait([asked], timeout=PERIOD_SECONDS)


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
