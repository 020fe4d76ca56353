"""A process that submits, claims, scores or acknowledges is killed: each accepted request still gets one result."""

import collections
import itertools
import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from shared_model.deferred import DeadLetters, DeferredQueue, State
from shared_model.redis_store import keys
from shared_model.settings import DeferredSettings
from tests.shared_model import mortals
from tests.shared_model.mortals import LEASE_SECONDS, Phase

#: Processes that live at once, by what they do.
CAST = [mortals.submit, mortals.submit, mortals.consume, mortals.consume, mortals.consume]


class Stage:
    """Keeps the cast alive, and kills one of it at a time."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        # One process imports everything once; the others are copies of it.
        self._start = multiprocessing.get_context("forkserver")
        self._start.set_forkserver_preload(["tests.shared_model.mortals"])
        self._url, self._folder = url, folder
        self._numbers = itertools.count(seed * 1_000_000)
        self._phases = self._start.RawArray("b", len(CAST))
        self._draw = random.Random(seed)
        self._living = [self._cast(slot) for slot in range(len(CAST))]
        #: How often somebody was killed in each phase.
        self.killed: collections.Counter[Phase] = collections.Counter()

    def _cast(self, slot: int) -> Any:
        self._phases[slot] = Phase.STARTING
        arguments = (self._url, self._folder, next(self._numbers), self._phases, slot)
        process = self._start.Process(target=CAST[slot], args=arguments, daemon=True)
        process.start()
        return process

    def kill_one(self) -> None:
        """At a random moment, but not before it has begun."""
        slot = self._draw.randrange(len(CAST))
        while self._phases[slot] == Phase.STARTING:
            time.sleep(0.001)
        time.sleep(self._draw.random() * 0.03)
        self.killed[Phase(self._phases[slot])] += 1
        self._end(slot)
        self._living[slot] = self._cast(slot)

    def close(self) -> None:
        for slot in range(len(CAST)):
            self._end(slot)

    def _end(self, slot: int) -> None:
        self._living[slot].kill()
        self._living[slot].join()


async def finish_everything(client: "redis.asyncio.Redis") -> int:
    """Answer what is left, dead letters replayed; returns how many of those there were."""
    deferred_queue, letters = DeferredQueue(client), DeadLetters(client, DeferredSettings())
    deadline, replayed = time.monotonic() + 60, 0
    while True:
        replayed += await letters.replay([it async for it in letters.all()])
        if not await deferred_queue.waiting():
            return replayed
        assert time.monotonic() < deadline
        claimed = await deferred_queue.claim("last", 500, LEASE_SECONDS, again=500)
        await deferred_queue.store_results([(it, mortals.answer_to(it)) for it in claimed], "last")
        await deferred_queue.acknowledge(claimed)


async def check(client: "redis.asyncio.Redis", folder: Path) -> int:
    """Every acknowledged request has exactly one result; returns how many there are."""
    deferred_queue = DeferredQueue(client)
    acknowledged = (folder / "acknowledged").read_text().split()
    assert len(acknowledged) == len(set(acknowledged))
    for request_id in acknowledged:
        item = await deferred_queue.get(request_id)
        assert item is not None, f"{request_id} was acknowledged and is gone"
        assert item.state is State.PUBLISHED
        assert item.response
        assert item.response.reason == request_id
    kept = collections.Counter((folder / "kept").read_text().split())
    assert [request_id for request_id, times in kept.items() if times > 1] == []
    assert (await client.xpending(keys.deferred_stream(), "tandem"))["pending"] == 0
    return len(acknowledged)


async def survive(url: str, folder: Path, kills: int, seed: int) -> collections.Counter[Phase]:
    stage = Stage(url, folder, seed)
    try:
        for _ in range(kills):
            stage.kill_one()
    finally:
        stage.close()
    async with redis.asyncio.Redis.from_url(url) as client:
        await finish_everything(client)
        assert await check(client, folder) > kills
    return stage.killed


async def test_every_acknowledged_request_has_one_result_after_kills_at_random_moments(
    redis_url: str, tmp_path: Path
) -> None:
    assert (await survive(redis_url, tmp_path, kills=25, seed=7)).total() == 25


@pytest.mark.proof
async def test_every_acknowledged_request_has_one_result_after_a_hundred_kills(redis_url: str, tmp_path: Path) -> None:
    killed = await survive(redis_url, tmp_path, kills=100, seed=random.randrange(10**6))
    assert set(killed) >= {Phase.SUBMITTING, Phase.CLAIMING, Phase.WORKING, Phase.SCORING}
