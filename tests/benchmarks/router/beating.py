"""python -m tests.benchmarks.router.beating REDIS: the heartbeat of one replica, and nothing else, in a process."""

import asyncio
import gc
import random
import sys
import time

from realtime_service.cluster.membership import Membership
from realtime_service.process import redis_connections
from realtime_service.routing.overrides import Policy
from realtime_service.routing.snapshot import Snapshot
from realtime_service.settings import SERVED
from tests.benchmarks.router import fleet
from tests.load import child


async def run(redis_url: str) -> None:
    *_, own = fleet.states(random.Random(7))
    client = redis_connections.default_client(redis_url)
    membership = Membership(
        client, Snapshot(fleet.name(fleet.REPLICAS - 1), SERVED), lambda lanes: own, Policy(), fleet.KEYS
    )
    await membership.run_once()
    # As a service does when it is ready.
    gc.freeze()
    beating = asyncio.create_task(membership.run())

    def measured(seconds: float) -> dict[str, float]:
        """CPU of this process in so many seconds, as a share of one core."""
        before, began = time.process_time(), time.monotonic()
        time.sleep(seconds)
        share = (time.process_time() - before) / (time.monotonic() - began)
        return {"share": share, "replicas": len(membership.snapshot.replicas)}

    await asyncio.to_thread(child.answer, {}, measured)
    beating.cancel()
    await client.aclose()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
