"""Deferred work is claimed by deadline, then age: also what was given back, and what a former version has stored."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
import redis.asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protos.scoring.v1.scoring_pb2 import ScoreRequest, ScoreResponse
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model.deferred import DeferredQueue
from shared_model.deferred.scripts import GROUP
from shared_model.deferred.store import Submission
from shared_model.redis_store import keys

LONG = 60.0
HOUR = 3_600_000
#: Milliseconds within which a request has to be answered; 0: no deadline. None: stored by a former version.
Within = int | None


def work(name: str) -> DeferredWork:
    return DeferredWork(request=ScoreRequest(texts=[name]), accepted_at_ms=1)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator["redis.asyncio.Redis"]:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        yield client


async def submit(client: "redis.asyncio.Redis", name: str, within: Within = 0) -> None:
    if within is not None:
        await DeferredQueue(client).submit_many([Submission(name, work(name), within)])
        return
    fields = {"id": name, "work": work(name).SerializeToString(), "content": "", "ticket": ""}
    entry = await client.xadd(keys.deferred_stream(), fields)
    await client.hset(keys.deferred_item(name), mapping={"state": "accepted", "entry": entry})


async def claimed(queue: DeferredQueue, count: int, consumer: str = "lane") -> list[str]:
    return [it.request_id for it in await queue.claim(consumer, count, LONG)]


async def test_the_sooner_deadline_goes_first_then_the_older_request(client: "redis.asyncio.Redis") -> None:
    for name, within in (("old", 0), ("later", 2 * HOUR), ("soon", HOUR), ("young", 0)):
        await submit(client, name, within)
    queue = DeferredQueue(client)
    assert await claimed(queue, 1) == ["soon"]
    assert await claimed(queue, 10) == ["later", "old", "young"]
    assert await claimed(queue, 10) == []


async def test_many_of_one_millisecond_are_in_the_order_of_their_age(client: "redis.asyncio.Redis") -> None:
    names = [f"number-{number}" for number in range(25)]
    await DeferredQueue(client).submit_many([Submission(name, work(name)) for name in names])
    queue = DeferredQueue(client)
    assert [*await claimed(queue, 12), *await claimed(queue, 20)] == names


async def test_what_is_given_back_has_its_place_again(client: "redis.asyncio.Redis") -> None:
    for name, within in (("late", 0), ("soon", HOUR)):
        await submit(client, name, within)
    queue = DeferredQueue(client)
    await queue.nack("lane", await queue.claim("lane", 10, LONG))
    await submit(client, "sooner", HOUR // 2)
    assert await claimed(queue, 10) == ["sooner", "soon", "late"]


async def test_what_a_former_version_has_stored_is_in_the_same_order(client: "redis.asyncio.Redis") -> None:
    """Without the field by which this one tells that an entry has its place."""
    await submit(client, "former", None)
    await submit(client, "new", HOUR)
    await submit(client, "former, too", None)
    queue = DeferredQueue(client)
    assert await claimed(queue, 10) == ["new", "former", "former, too"]


async def test_a_consumer_of_a_former_version_keeps_what_it_holds(client: "redis.asyncio.Redis") -> None:
    """It reads the stream in its order, and does not know of the other one."""
    for name, within in (("a", 0), ("b", 0), ("c", HOUR)):
        await submit(client, name, within)
    queue = DeferredQueue(client)
    # The group is there, as a former version has made it.
    await client.xgroup_create(keys.deferred_stream(), GROUP, "0")
    await client.xreadgroup(GROUP, "former", {keys.deferred_stream(): ">"}, count=1)
    assert await claimed(queue, 10) == ["c", "b"]


async def test_work_of_other_models_stays_for_those_that_serve_them(client: "redis.asyncio.Redis") -> None:
    """However much of it comes first."""
    names = [f"side-{number}" for number in range(30)]
    side = DeferredWork(request=ScoreRequest(texts=["a"], model="side"), accepted_at_ms=1)
    await DeferredQueue(client).submit_many([Submission(name, side) for name in names])
    await submit(client, "default", 0)
    queue = DeferredQueue(client)

    async def taken(count: int, models: Sequence[str] | None) -> list[str]:
        return [it.request_id for it in await queue.claim("lane", count, LONG, models=models)]

    assert await taken(16, ["main"]) == ["default"]
    assert await taken(16, ["main", "other-side"]) == []
    assert await taken(16, ["side"]) == names[:16]
    assert await taken(16, None) == names[16:]


# Each example begins with an empty Redis.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.sampled_from([None, 0, HOUR, 2 * HOUR, 3 * HOUR]), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(1, 7), st.booleans()), max_size=12),
)
def test_any_claims_and_returns_keep_the_order(
    redis_url: str, stored: list[Within], claims: Sequence[tuple[int, bool]]
) -> None:
    """`claims`: how many, and whether they are given back."""

    async def run() -> None:
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            await client.flushall()
            for number, within in enumerate(stored):
                await submit(client, str(number), within)
            queue = DeferredQueue(client)
            # Milliseconds pass between the requests: those of one class have deadlines in their order.
            expected = [str(it) for it in sorted(range(len(stored)), key=lambda it: (stored[it] or 10 * HOUR, it))]
            for count, returned in claims:
                found = await queue.claim("lane", count, LONG)
                assert [it.request_id for it in found] == expected[:count]
                if returned:
                    assert await queue.nack("lane", found) == len(found)
                    continue
                expected = expected[count:]
                await queue.store_results([(it, ScoreResponse()) for it in found], "idle")
                await queue.acknowledge(found)
            assert await queue.waiting() == len(expected)
            assert await claimed(queue, 100) == expected
            assert await client.zcard(keys.deferred_order()) == 0

    asyncio.run(run())
