"""The guards of a result: the content of its id's first request, the ticket of its readers, the owner in its id."""

from collections.abc import AsyncIterator

import pytest
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st

from protos.scoring.v1.scoring_pb2 import ScoreRequest, ScoreResponse
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model.deferred import Accepted, Claimed, DeadLetters, DeferredQueue, State, Submission
from shared_model.deferred.owners import is_owned, owned, request_id_of
from shared_model.deferred.store import DEFAULTS
from shared_model.errors import AlreadyExists
from shared_model.redis_store import keys


def submission(text: str = "hello", request_id: str = "a", ticket: str = "secret", at_ms: int = 1) -> Submission:
    request = ScoreRequest(texts=[text], request_id="a")
    return Submission(request_id, DeferredWork(request=request, accepted_at_ms=at_ms), 0, ticket)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator["redis.asyncio.Redis"]:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def deferred_queue(client: "redis.asyncio.Redis") -> DeferredQueue:
    return DeferredQueue(client)


async def ticket_of(deferred_queue: DeferredQueue, request_id: str = "a") -> str | None:
    [ticket] = await deferred_queue.tickets([request_id])
    item = await deferred_queue.get(request_id)
    assert ticket == (item and item.ticket)
    return ticket


async def answer(deferred_queue: DeferredQueue, item: Claimed) -> None:
    await deferred_queue.store_results([(item, ScoreResponse())], "idle")
    await deferred_queue.acknowledge([item])


async def test_the_same_request_again_gets_the_ticket_of_the_first(deferred_queue: DeferredQueue) -> None:
    assert await deferred_queue.submit_many([submission(), submission(ticket="another", at_ms=2)]) == [
        Accepted(State.ACCEPTED, False, "secret"),
        Accepted(State.ACCEPTED, True, "secret"),
    ]


async def test_another_request_of_the_same_id_is_refused_in_every_state(deferred_queue: DeferredQueue) -> None:
    await deferred_queue.submit_many([submission()])
    for state in (State.ACCEPTED, State.CLAIMED, State.PUBLISHED):
        [other, same] = await deferred_queue.submit_many([submission("something else"), submission()])
        assert isinstance(other, AlreadyExists)
        assert same == Accepted(state, True, "secret")
        if state is State.ACCEPTED:
            [item] = await deferred_queue.claim("lane", 1)
        elif state is State.CLAIMED:
            await answer(deferred_queue, item)
    assert item.work.request.texts == ["hello"]


async def test_a_request_of_an_earlier_version_is_readable_and_finishable(
    client: "redis.asyncio.Redis", deferred_queue: DeferredQueue
) -> None:
    entry = await client.xadd(keys.deferred_stream(), {"id": "a", "work": submission().work.SerializeToString()})
    await client.hset(keys.deferred_item("a"), mapping={"state": "accepted", "entry": entry})
    assert await ticket_of(deferred_queue) == ""
    assert await deferred_queue.submit_many([submission("of other content")]) == [Accepted(State.ACCEPTED, True, "")]
    [item] = await deferred_queue.claim("lane", 1)
    await answer(deferred_queue, item)
    assert await deferred_queue.states(["a"]) == [State.PUBLISHED]


async def test_a_dead_letter_keeps_its_guards_when_it_is_replayed(
    client: "redis.asyncio.Redis", deferred_queue: DeferredQueue
) -> None:
    letters = DeadLetters(client, DEFAULTS)
    await deferred_queue.submit_many([submission(), submission(request_id="token:alice/a", ticket="")])
    for _ in range(3):
        await deferred_queue.claim("dies", 2, lease_seconds=0.0, again=2)
    # One has expired, the other one has not.
    await client.delete(keys.deferred_item("a"))
    found = [letter async for letter in letters.all()]
    assert [letter.request_id for letter in found] == ["a", "token:alice/a"]
    assert await letters.replay(found) == 2
    assert [await ticket_of(deferred_queue, it) for it in ("a", "token:alice/a")] == ["secret", ""]
    [other] = await deferred_queue.submit_many([submission("something else")])
    assert isinstance(other, AlreadyExists)
    assert {it.request_id for it in await deferred_queue.claim("lane", 9)} == {"a", "token:alice/a"}


async def test_a_dead_letter_of_a_failed_text_keeps_its_ticket(
    client: "redis.asyncio.Redis", deferred_queue: DeferredQueue
) -> None:
    await deferred_queue.submit_many([submission()])
    [item] = await deferred_queue.claim("driver", 1, counted=False)
    assert await deferred_queue.dead_letter(item, "it fails by itself", "nightly", attempts=2)
    await client.delete(keys.deferred_item("a"))
    letters = DeadLetters(client, DEFAULTS)
    assert await letters.replay([letter async for letter in letters.all()]) == 1
    assert await ticket_of(deferred_queue) == "secret"


async def test_work_that_outlives_its_item_keeps_its_ticket(
    client: "redis.asyncio.Redis", deferred_queue: DeferredQueue
) -> None:
    await deferred_queue.submit_many([submission()])
    [item] = await deferred_queue.claim("lane", 1)
    await client.delete(keys.deferred_item("a"))
    await answer(deferred_queue, item)
    assert await ticket_of(deferred_queue) == "secret"


names = st.text("a/%é", min_size=1, max_size=4)


@given(st.tuples(names, names), st.tuples(names, names))
def test_no_two_requests_of_any_callers_share_an_id(one: tuple[str, str], other: tuple[str, str]) -> None:
    first, second = owned(f"token:{one[0]}", one[1]), owned(f"token:{other[0]}", other[1])
    assert (first == second) == (one == other)
    assert is_owned(first)
    assert request_id_of(first) == one[1]
