"""Deferred work: acknowledged only when stored, executed at least once, answered exactly once."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import redis
import redis.asyncio

from protos.scoring.v1.scoring_pb2 import ScoreRequest, ScoreResponse
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model import keys
from shared_model.errors import QueueFull, StoreUnavailable
from shared_model.handoff import Claimed, Handoff, State

LONG = 60.0  # seconds of a lease that does not run out within a test
RAN_OUT = 0.0  # every lease has


def work(text: str) -> DeferredWork:
    return DeferredWork(request=ScoreRequest(texts=[text]), accepted_at_ms=1)


def answer(release: str) -> ScoreResponse:
    return ScoreResponse(release=release)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator["redis.asyncio.Redis"]:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def handoff(client: "redis.asyncio.Redis") -> Handoff:
    handoff = Handoff(client)
    assert await handoff.claim("nobody", 1, LONG) == []  # makes the consumer group
    return handoff


async def claim_one(handoff: Handoff, consumer: str, lease_seconds: float = LONG) -> Claimed:
    (item,) = await handoff.claim(consumer, 10, lease_seconds)
    return item


async def test_accepted_claimed_published(handoff: Handoff) -> None:
    assert await handoff.submit("a", work("hello")) == (State.ACCEPTED, False)
    assert await handoff.waiting() == 1
    item = await claim_one(handoff, "lane")
    assert (item.request_id, item.work) == ("a", work("hello"))
    claimed = await handoff.get("a")
    assert claimed
    assert (claimed.state, claimed.response) == (State.CLAIMED, None)

    assert await handoff.publish(item, answer("r1"), "idle")

    published = await handoff.get("a")
    assert published
    assert (published.state, published.response, published.computed_by) == (State.PUBLISHED, answer("r1"), "idle")
    assert await handoff.waiting() == 0
    assert await handoff.claim("other", 10, RAN_OUT) == []


async def test_work_that_cannot_be_done_says_why(handoff: Handoff) -> None:
    await handoff.submit("a", work("hello"))
    assert await handoff.fail(await claim_one(handoff, "lane"), "no such release", "nightly")
    item = await handoff.get("a")
    assert item
    assert (item.state, item.failure, item.response) == (State.FAILED, "no such release", None)
    assert await handoff.waiting() == 0


async def test_unknown_request_is_none(handoff: Handoff) -> None:
    assert await handoff.get("never") is None


async def test_submit_is_idempotent_in_every_state(handoff: Handoff) -> None:
    await handoff.submit("a", work("hello"))
    assert await handoff.submit("a", work("hello")) == (State.ACCEPTED, True)
    item = await claim_one(handoff, "lane")
    assert await handoff.submit("a", work("hello")) == (State.CLAIMED, True)
    await handoff.publish(item, answer("r1"), "idle")
    assert await handoff.submit("a", work("hello")) == (State.PUBLISHED, True)
    assert await handoff.waiting() == 0


async def test_simultaneous_submits_store_once(handoff: Handoff) -> None:
    outcomes = await asyncio.gather(*(handoff.submit("a", work("hello")) for _ in range(20)))
    assert [duplicate for _, duplicate in outcomes].count(False) == 1
    assert await handoff.waiting() == 1


async def test_the_bound_refuses_and_stores_nothing(client: "redis.asyncio.Redis") -> None:
    handoff = Handoff(client, bound=2)
    await handoff.submit("a", work("1"))
    await handoff.submit("b", work("2"))
    with pytest.raises(QueueFull, match="submit again later"):
        await handoff.submit("c", work("3"))
    assert await handoff.get("c") is None
    assert await handoff.submit("b", work("2")) == (State.ACCEPTED, True)  # what was accepted stays accepted
    await handoff.claim("lane", 1, LONG)
    await handoff.publish((await handoff.claim("lane", 1, LONG))[0], answer("r1"), "idle")
    assert await handoff.submit("c", work("3")) == (State.ACCEPTED, False)


async def test_a_held_lease_is_respected(handoff: Handoff) -> None:
    await handoff.submit("a", work("hello"))
    await claim_one(handoff, "first")
    assert await handoff.claim("second", 10, LONG) == []


async def test_a_lease_that_ran_out_returns_the_work(handoff: Handoff) -> None:
    await handoff.submit("a", work("hello"))
    await claim_one(handoff, "crashed")
    deadline = time.monotonic() + 5
    while not (returned := await handoff.claim("second", 10, lease_seconds=0.05)):
        assert time.monotonic() < deadline
    assert [item.request_id for item in returned] == ["a"]


async def test_the_first_answer_stands(handoff: Handoff) -> None:
    await handoff.submit("a", work("hello"))
    slow = await claim_one(handoff, "slow")
    quick = await claim_one(handoff, "quick", RAN_OUT)
    assert await handoff.publish(quick, answer("quick"), "nightly")
    assert not await handoff.publish(slow, answer("slow"), "idle")
    assert not await handoff.fail(slow, "too late", "idle")
    item = await handoff.get("a")
    assert item
    assert item.response == answer("quick")
    assert (item.state, item.computed_by, item.failure) == (State.PUBLISHED, "nightly", "")


class Stalling(Handoff):
    """Stops for breath between taking work off the stream and noting so."""

    def __init__(self, client: "redis.asyncio.Redis") -> None:
        super().__init__(client)
        self.taken, self.go_on = asyncio.Event(), asyncio.Event()

    async def _mark_claimed(self, claimed: list[Claimed]) -> None:
        self.taken.set()
        await self.go_on.wait()
        await super()._mark_claimed(claimed)


async def test_a_claim_that_stalls_does_not_take_an_answer_back(
    client: "redis.asyncio.Redis", handoff: Handoff
) -> None:
    await handoff.submit("a", work("hello"))
    stalling = Stalling(client)
    stalled = asyncio.create_task(stalling.claim("stalled", 1, LONG))
    await stalling.taken.wait()
    await handoff.publish(await claim_one(handoff, "quick", RAN_OUT), answer("quick"), "nightly")

    stalling.go_on.set()
    (late,) = await stalled

    item = await handoff.get("a")
    assert item
    assert item.state is State.PUBLISHED
    assert not await handoff.publish(late, answer("late"), "idle")


async def test_leases_that_ran_out_come_before_new_work(handoff: Handoff) -> None:
    for request_id in "abcd":
        await handoff.submit(request_id, work(request_id))
    await handoff.claim("crashed", 2, LONG)
    assert [item.request_id for item in await handoff.claim("lane", 3, RAN_OUT)] == ["a", "b", "c"]


async def test_a_flushed_redis_is_recovered_from(client: "redis.asyncio.Redis", handoff: Handoff) -> None:
    await handoff.submit("a", work("lost"))
    await client.flushall()
    await handoff.submit("b", work("hello"))
    assert await handoff.claim("lane", 10, LONG) == []  # makes the group anew
    assert (await claim_one(handoff, "lane")).request_id == "b"


async def test_several_consumers_may_meet_a_missing_group_at_once(client: "redis.asyncio.Redis") -> None:
    handoffs = [Handoff(client) for _ in range(8)]
    await asyncio.gather(*(h.claim(f"lane-{n}", 1, LONG) for n, h in enumerate(handoffs)))
    await handoffs[0].submit("a", work("hello"))
    assert (await claim_one(handoffs[0], "lane")).request_id == "a"


async def test_unfinished_work_and_results_are_not_kept_for_ever(
    client: "redis.asyncio.Redis", handoff: Handoff
) -> None:
    await handoff.submit("a", work("hello"))
    assert await client.ttl(keys.deferred_item("a")) > 0
    await handoff.publish(await claim_one(handoff, "lane"), answer("r1"), "idle")
    assert await client.ttl(keys.deferred_item("a")) > 0


async def test_work_outlives_its_item(client: "redis.asyncio.Redis", handoff: Handoff) -> None:
    """The item's time to be kept may end while its work still waits; claiming must not leave an item for ever."""
    await handoff.submit("a", work("hello"))
    await client.delete(keys.deferred_item("a"))
    item = await claim_one(handoff, "lane")
    assert await handoff.get("a") is None
    assert await handoff.publish(item, answer("r1"), "idle")


async def test_without_redis_every_call_says_so() -> None:
    item = Claimed(b"1-1", "a", work("hello"))
    async with redis.asyncio.Redis.from_url("redis://127.0.0.1:1", socket_timeout=1.0) as client:
        handoff = Handoff(client)
        for call in (
            handoff.submit("a", work("hello")),
            handoff.get("a"),
            handoff.claim("lane", 1, LONG),
            handoff.publish(item, answer("r1"), "idle"),
            handoff.fail(item, "why", "idle"),
            handoff.waiting(),
        ):
            with pytest.raises(StoreUnavailable, match="did not answer"):
                await call


async def test_a_redis_that_refuses_writes_is_unavailable_and_acknowledges_nothing(
    client: "redis.asyncio.Redis", handoff: Handoff
) -> None:
    await client.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable, match="Redis refused"):
            await handoff.submit("a", work("x" * 1000))
        assert await handoff.get("a") is None
    finally:
        await client.config_set("maxmemory", "0")
    assert await handoff.submit("a", work("x" * 1000)) == (State.ACCEPTED, False)
