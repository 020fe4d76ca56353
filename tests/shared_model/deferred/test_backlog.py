"""How much work waits that no consumer is at."""

import redis.asyncio

from shared_model.deferred import Backlog, DeferredQueue
from shared_model.redis_store import keys
from tests.shared_model.deferred.test_store import LONG, RAN_OUT, claim_one, client, deferred_queue, work

__all__ = ["client", "deferred_queue"]


async def test_nothing_was_ever_submitted(deferred_queue: DeferredQueue) -> None:
    assert await deferred_queue.backlog() == Backlog(0, None)


async def test_the_earliest_deadline_is_told_whatever_came_first(deferred_queue: DeferredQueue) -> None:
    await deferred_queue.submit("without", work("a"))
    assert (await deferred_queue.backlog())[:2] == (1, None)
    await deferred_queue.submit("late", work("b"), deliver_within_ms=900_000)
    await deferred_queue.submit("soon", work("c"), deliver_within_ms=60_000)
    waiting, due, _ = await deferred_queue.backlog()
    assert waiting == 3
    assert due is not None
    assert 50_000 < due <= 60_000


async def test_the_age_is_that_of_the_oldest_that_is_not_answered(
    deferred_queue: DeferredQueue, client: "redis.asyncio.Redis"
) -> None:
    seconds, _ = await client.time()
    stream = keys.deferred_stream()
    await client.xadd(stream, {"id": "old", "work": work("a").SerializeToString()}, id=f"{1000 * (seconds - 90)}-0")
    await deferred_queue.submit("young", work("b"))
    age = (await deferred_queue.backlog()).age_ms
    assert age is not None
    assert 89_000 <= age < 99_000
    await client.xtrim(stream, 1, approximate=False)
    age = (await deferred_queue.backlog()).age_ms
    assert age is not None
    assert 0 <= age < 9_000


async def test_what_a_consumer_is_at_does_not_count_until_its_lease_is_over(deferred_queue: DeferredQueue) -> None:
    for name in ("a", "b"):
        await deferred_queue.submit(name, work(name))
    held = (await deferred_queue.claim("lane", 1, LONG))[0]
    assert (await deferred_queue.backlog(LONG)).waiting == 1
    assert (await deferred_queue.backlog(RAN_OUT)).waiting == 2
    await deferred_queue.nack("lane", [held])
    assert (await deferred_queue.backlog(LONG)).waiting == 2


async def test_more_is_held_than_one_page_of_a_look(
    deferred_queue: DeferredQueue, client: "redis.asyncio.Redis"
) -> None:
    for number in range(1_101):
        await deferred_queue.submit(f"{number}", work("a"))
    assert len(await deferred_queue.claim("lane", 1_100, LONG)) == 1_100
    assert (await deferred_queue.backlog(LONG)).waiting == 1
    # A request that has ended waits no longer.
    last = await claim_one(deferred_queue, "lane")
    await deferred_queue.fail(last, "it is of no use", "lane")
    assert (await deferred_queue.backlog(LONG)).waiting == 0
