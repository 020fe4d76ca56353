"""Behind a router a replica shares among the callers, not among routers: a flood through it delays no other caller."""

import asyncio
import time
from statistics import median

import grpc.aio
import pytest

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from tests.integration.serving.fleet import Fleet, end, wait_until_answered
from tests.realtime_service.tokens import bearer, key_file, token

#: Calls of the flood at once: 0.4 s of a replica's work.
FLOOD, CALLS = 40, 12


@pytest.mark.timed
def test_a_flood_through_a_router_does_not_delay_another_caller(sleeping: tuple[Fleet, float]) -> None:
    fleet, _ = sleeping
    router = fleet.router(TANDEM_TOKEN_KEYS=str(key_file(fleet.folder)))
    wait_until_answered(router)

    async def calls() -> tuple[list[float], list[float]]:
        """Seconds of the calls of (the flood, the other caller)."""
        flooded, polite, full = list[float](), list[float](), asyncio.Event()
        async with grpc.aio.insecure_channel(router.address) as channel:
            stub = ScoringServiceStub(channel)  # type: ignore[no-untyped-call]
            request = scoring_pb2.ScoreRequest(texts=["card"], priority=scoring_pb2.REAL_TIME)

            async def call(caller: str, took: list[float]) -> None:
                began, metadata = time.monotonic(), (*bearer(token(sub=caller)), ("x-tandem-lane", "latency"))
                await stub.Score(request, timeout=20, metadata=metadata)
                took.append(time.monotonic() - began)

            async def flood() -> None:
                while True:
                    await call("greedy", flooded)
                    if len(flooded) >= FLOOD:
                        full.set()

            tasks = [asyncio.create_task(flood()) for _ in range(FLOOD)]
            await full.wait()
            for _ in range(CALLS):
                await call("polite", polite)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        return flooded[FLOOD:], polite

    flooded, polite = asyncio.run(calls())
    end(router)
    assert median(polite) < 0.5 * median(flooded)
