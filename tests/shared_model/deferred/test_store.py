"""Deferred work: acknowledged only when stored, executed at least once, answered exactly once."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import redis
import redis.asyncio

from protos.scoring.v1.scoring_pb2 import ScoreRequest, ScoreResponse
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model.deferred import Accepted, Claimed, DeadLetters, DeferredQueue, Lease, State, Submission, Unanswered
from shared_model.deferred.store import LAST_DELIVERY
from shared_model.errors import BadInput, QueueFull, StoreUnavailable
from shared_model.redis_store import keys
from shared_model.settings import DeferredSettings

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
async def deferred_queue(client: "redis.asyncio.Redis") -> DeferredQueue:
    return DeferredQueue(client)


async def answer_and_acknowledge(
    deferred_queue: DeferredQueue, item: Claimed, response: ScoreResponse, computed_by: str
) -> bool:
    """Store an answer and acknowledge the work, as a consumer does. Whether the answer was kept."""
    [kept] = await deferred_queue.store_results([(item, response)], computed_by)
    await deferred_queue.acknowledge([item])
    return kept


async def claim_one(deferred_queue: DeferredQueue, consumer: str, lease_seconds: float = LONG) -> Claimed:
    [item] = await deferred_queue.claim(consumer, 10, lease_seconds)
    return item


async def state_of(deferred_queue: DeferredQueue, request_id: str) -> State | None:
    [state] = await deferred_queue.states([request_id])
    return state


async def test_accepted_claimed_published(deferred_queue: DeferredQueue) -> None:
    assert await deferred_queue.submit("a", work("hello")) == (State.ACCEPTED, False)
    assert await deferred_queue.waiting() == 1
    item = await claim_one(deferred_queue, "lane")
    assert (item.request_id, item.work) == ("a", work("hello"))
    claimed = await deferred_queue.get("a")
    assert claimed
    assert (claimed.state, claimed.response) == (State.CLAIMED, None)

    assert await answer_and_acknowledge(deferred_queue, item, answer("r1"), "idle")

    published = await deferred_queue.get("a")
    assert published
    assert (published.state, published.response, published.computed_by) == (State.PUBLISHED, answer("r1"), "idle")
    assert await deferred_queue.waiting() == 0
    assert await deferred_queue.claim("other", 10, RAN_OUT) == []


async def test_work_that_cannot_be_done_says_why(deferred_queue: DeferredQueue) -> None:
    await deferred_queue.submit("a", work("hello"))
    assert await deferred_queue.fail(await claim_one(deferred_queue, "lane"), "no such release", "nightly")
    item = await deferred_queue.get("a")
    assert item
    assert (item.state, item.failure, item.response) == (State.FAILED, "no such release", None)
    assert await deferred_queue.waiting() == 0


async def test_unknown_request_is_none(deferred_queue: DeferredQueue) -> None:
    assert await deferred_queue.get("never") is None


async def test_submit_is_idempotent_in_every_state(deferred_queue: DeferredQueue) -> None:
    await deferred_queue.submit("a", work("hello"))
    assert await deferred_queue.submit("a", work("hello")) == (State.ACCEPTED, True)
    item = await claim_one(deferred_queue, "lane")
    assert await deferred_queue.submit("a", work("hello")) == (State.CLAIMED, True)
    await answer_and_acknowledge(deferred_queue, item, answer("r1"), "idle")
    assert await deferred_queue.submit("a", work("hello")) == (State.PUBLISHED, True)
    assert await deferred_queue.waiting() == 0


async def test_simultaneous_submits_store_once(deferred_queue: DeferredQueue) -> None:
    outcomes = await asyncio.gather(*(deferred_queue.submit("a", work("hello")) for _ in range(20)))
    assert [duplicate for _, duplicate in outcomes].count(False) == 1
    assert await deferred_queue.waiting() == 1


async def test_the_bound_refuses_and_stores_nothing(client: "redis.asyncio.Redis") -> None:
    deferred_queue = DeferredQueue(client, DeferredSettings(deferred_bound=2))
    await deferred_queue.submit("a", work("1"))
    await deferred_queue.submit("b", work("2"))
    with pytest.raises(QueueFull, match="submit again later"):
        await deferred_queue.submit("c", work("3"))
    assert await deferred_queue.get("c") is None
    assert await deferred_queue.submit("b", work("2")) == (State.ACCEPTED, True)  # what was accepted stays accepted
    await deferred_queue.claim("lane", 1, LONG)
    await answer_and_acknowledge(deferred_queue, (await deferred_queue.claim("lane", 1, LONG))[0], answer("r1"), "idle")
    assert await deferred_queue.submit("c", work("3")) == (State.ACCEPTED, False)


async def test_a_held_lease_is_respected(deferred_queue: DeferredQueue) -> None:
    await deferred_queue.submit("a", work("hello"))
    await claim_one(deferred_queue, "first")
    assert await deferred_queue.claim("second", 10, LONG) == []


async def test_a_lease_that_ran_out_returns_the_work(deferred_queue: DeferredQueue) -> None:
    await deferred_queue.submit("a", work("hello"))
    await claim_one(deferred_queue, "crashed")
    deadline = time.monotonic() + 5
    while not (returned := await deferred_queue.claim("second", 10, lease_seconds=0.05)):
        assert time.monotonic() < deadline
    assert [item.request_id for item in returned] == ["a"]


async def test_the_first_answer_stands(deferred_queue: DeferredQueue) -> None:
    await deferred_queue.submit("a", work("hello"))
    slow = await claim_one(deferred_queue, "slow")
    quick = await claim_one(deferred_queue, "quick", RAN_OUT)
    assert await answer_and_acknowledge(deferred_queue, quick, answer("quick"), "nightly")
    assert not await answer_and_acknowledge(deferred_queue, slow, answer("slow"), "idle")
    assert not await deferred_queue.fail(slow, "too late", "idle")
    item = await deferred_queue.get("a")
    assert item
    assert item.response == answer("quick")
    assert (item.state, item.computed_by, item.failure) == (State.PUBLISHED, "nightly", "")


async def test_leases_that_ran_out_come_before_new_work(deferred_queue: DeferredQueue) -> None:
    for request_id in "abcd":
        await deferred_queue.submit(request_id, work(request_id))
    await deferred_queue.claim("crashed", 2, LONG)
    assert [item.request_id for item in await deferred_queue.claim("lane", 3, RAN_OUT, again=2)] == ["a", "b"]
    assert [item.request_id for item in await deferred_queue.claim("lane", 3, LONG)] == ["c", "d"]


async def test_a_flushed_redis_is_recovered_from(client: "redis.asyncio.Redis", deferred_queue: DeferredQueue) -> None:
    await deferred_queue.submit("a", work("lost"))
    await client.flushall()
    await deferred_queue.submit("b", work("hello"))
    assert (await claim_one(deferred_queue, "lane")).request_id == "b"


async def test_several_consumers_may_meet_a_missing_group_at_once(client: "redis.asyncio.Redis") -> None:
    handoffs = [DeferredQueue(client) for _ in range(8)]
    await asyncio.gather(*(h.claim(f"lane-{n}", 1, LONG) for n, h in enumerate(handoffs)))
    await handoffs[0].submit("a", work("hello"))
    assert (await claim_one(handoffs[0], "lane")).request_id == "a"


async def test_unfinished_work_and_results_are_not_kept_for_ever(
    client: "redis.asyncio.Redis", deferred_queue: DeferredQueue
) -> None:
    await deferred_queue.submit("a", work("hello"))
    assert await client.ttl(keys.deferred_item("a")) > 0
    await answer_and_acknowledge(deferred_queue, await claim_one(deferred_queue, "lane"), answer("r1"), "idle")
    assert await client.ttl(keys.deferred_item("a")) > 0


async def test_work_outlives_its_item(client: "redis.asyncio.Redis", deferred_queue: DeferredQueue) -> None:
    """The item's time to be kept may end while its work still waits; claiming must not leave an item for ever."""
    await deferred_queue.submit("a", work("hello"))
    await client.delete(keys.deferred_item("a"))
    item = await claim_one(deferred_queue, "lane")
    assert await deferred_queue.get("a") is None
    assert await answer_and_acknowledge(deferred_queue, item, answer("r1"), "idle")


async def test_without_redis_every_call_says_so() -> None:
    item = Claimed(b"1-1", "a", work("hello"))
    async with redis.asyncio.Redis.from_url("redis://127.0.0.1:1", socket_timeout=1.0) as client:
        deferred_queue = DeferredQueue(client)
        for call in (
            deferred_queue.submit("a", work("hello")),
            deferred_queue.get("a"),
            deferred_queue.claim("lane", 1, LONG),
            deferred_queue.store_results([(item, answer("r1"))], "idle"),
            deferred_queue.acknowledge([item]),
            deferred_queue.renew("lane", [item]),
            deferred_queue.nack("lane", [item]),
            deferred_queue.fail(item, "why", "idle"),
            deferred_queue.waiting(),
        ):
            with pytest.raises(StoreUnavailable, match="did not answer"):
                await call


async def test_a_redis_that_refuses_writes_is_unavailable_and_acknowledges_nothing(
    client: "redis.asyncio.Redis", deferred_queue: DeferredQueue
) -> None:
    await client.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable, match="Redis refused"):
            await deferred_queue.submit("a", work("x" * 1000))
        assert await deferred_queue.get("a") is None
    finally:
        await client.config_set("maxmemory", "0")
    assert await deferred_queue.submit("a", work("x" * 1000)) == (State.ACCEPTED, False)


async def test_a_chunk_is_stored_in_one_call_each_item_by_itself(client: "redis.asyncio.Redis") -> None:
    deferred_queue = DeferredQueue(client, DeferredSettings(deferred_bound=3))
    await deferred_queue.submit("old", work("old"))
    outcomes = await deferred_queue.submit_many([Submission(it, work(it)) for it in ("a", "old", "b", "a", "c")])
    new, again = Accepted(State.ACCEPTED, False, ""), Accepted(State.ACCEPTED, True, "")
    assert outcomes[:4] == [new, again, new, again]
    assert isinstance(outcomes[4], QueueFull)
    assert await deferred_queue.waiting() == 3
    assert [item.request_id for item in await deferred_queue.claim("lane", 9)] == ["old", "a", "b"]


async def test_a_stored_answer_is_not_computed_again_but_published_by_whoever_comes(
    deferred_queue: DeferredQueue,
) -> None:
    await deferred_queue.submit("a", work("hello"))
    dying = await claim_one(deferred_queue, "dying")
    assert await deferred_queue.store_results([(dying, answer("r1"))], "nightly") == [True]
    scored = await deferred_queue.get("a")
    assert scored
    assert (scored.state, scored.response) == (State.SCORED, None)
    assert await deferred_queue.waiting() == 1
    assert not await deferred_queue.fail(dying, "changed its mind", "nightly")

    assert await deferred_queue.claim("next", 10, RAN_OUT) == []

    item = await deferred_queue.get("a")
    assert item
    assert (item.state, item.response, item.computed_by) == (State.PUBLISHED, answer("r1"), "nightly")
    assert await deferred_queue.waiting() == 0


async def clock_ms(client: "redis.asyncio.Redis") -> int:
    """Redis' clock; no other one counts."""
    seconds, microseconds = await client.time()
    return int(seconds * 1000 + microseconds // 1000)


async def let_time_be_over(client: "redis.asyncio.Redis", request_id: str) -> None:
    """A machine may pause a test for longer than it would like to wait."""
    assert await client.hset(keys.deferred_item(request_id), "due", await clock_ms(client)) == 0


async def look(deferred_queue: DeferredQueue, claimed: Claimed) -> None:
    await deferred_queue.get("a")


async def look_at_states(deferred_queue: DeferredQueue, claimed: Claimed) -> None:
    await deferred_queue.states(["a"])


async def submit_again(deferred_queue: DeferredQueue, claimed: Claimed) -> None:
    assert await deferred_queue.submit("a", work("hello")) == (State.EXPIRED, True)


async def claim_again(deferred_queue: DeferredQueue, claimed: Claimed) -> None:
    assert await deferred_queue.claim("next", 10, RAN_OUT) == []


async def answer_late(deferred_queue: DeferredQueue, claimed: Claimed) -> None:
    assert not await answer_and_acknowledge(deferred_queue, claimed, answer("late"), "idle")


async def fail_late(deferred_queue: DeferredQueue, claimed: Claimed) -> None:
    assert not await deferred_queue.fail(claimed, "late", "idle")


@pytest.mark.parametrize("noticing", [look, look_at_states, submit_again, claim_again, answer_late, fail_late])
async def test_work_whose_time_is_over_expires_once_whoever_notices(
    client: "redis.asyncio.Redis", noticing: Callable[[DeferredQueue, Claimed], Awaitable[None]]
) -> None:
    noticed: list[tuple[Unanswered, int]] = []
    deferred_queue = DeferredQueue(client, on_unanswered=lambda how, count: noticed.append((how, count)))
    await deferred_queue.submit("a", work("hello"), deliver_within_ms=60_000)
    claimed = await claim_one(deferred_queue, "lane")
    await let_time_be_over(client, "a")
    await noticing(deferred_queue, claimed)
    assert await deferred_queue.waiting() == 0
    for once_more in (look, look_at_states, claim_again, answer_late, fail_late):
        await once_more(deferred_queue, claimed)
    assert noticed == [(Unanswered.EXPIRED, 1)]
    item = await deferred_queue.get("a")
    assert item
    assert (item.state, item.response) == (State.EXPIRED, None)


async def test_what_has_a_result_in_time_does_not_expire(
    client: "redis.asyncio.Redis", deferred_queue: DeferredQueue
) -> None:
    await deferred_queue.submit("a", work("hello"), deliver_within_ms=60_000)
    item = await claim_one(deferred_queue, "lane")
    assert await deferred_queue.store_results([(item, answer("r1"))], "idle") == [True]
    await let_time_be_over(client, "a")
    assert await state_of(deferred_queue, "a") is State.SCORED
    assert await deferred_queue.acknowledge([item]) == 1


async def test_the_clock_of_a_host_does_not_count(
    deferred_queue: DeferredQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 4e9)
    await deferred_queue.submit("a", work("hello"), deliver_within_ms=60_000)
    assert await state_of(deferred_queue, "a") is State.ACCEPTED


async def pending(client: "redis.asyncio.Redis") -> dict[str, tuple[str, int, int]]:
    """Of each entry that was delivered and not acknowledged: consumer, idle milliseconds, deliveries."""
    rows = await client.xpending_range(keys.deferred_stream(), "tandem", "-", "+", 100)
    by_entry = dict(await client.xrange(keys.deferred_stream()))
    return {
        by_entry[row["message_id"]][b"id"].decode(): (
            row["consumer"].decode(),
            row["time_since_delivered"],
            row["times_delivered"],
        )
        for row in rows
    }


async def test_a_renewed_lease_is_young_again_and_counts_no_delivery(
    client: "redis.asyncio.Redis", deferred_queue: DeferredQueue
) -> None:
    await deferred_queue.submit("a", work("hello"))
    item = await claim_one(deferred_queue, "lane")
    while (await pending(client))["a"][1] < 50:
        pass
    before = await clock_ms(client)
    assert await deferred_queue.renew("lane", [item]) == {item.entry}
    consumer, idle, deliveries = (await pending(client))["a"]
    assert (consumer, deliveries) == ("lane", 1)
    assert idle <= await clock_ms(client) - before


async def test_a_lease_that_somebody_else_has_is_not_renewed(
    client: "redis.asyncio.Redis", deferred_queue: DeferredQueue
) -> None:
    await deferred_queue.submit("a", work("hello"))
    lost = await claim_one(deferred_queue, "slow")
    await claim_one(deferred_queue, "quick", RAN_OUT)
    abandoned: list[Claimed] = []
    async with Lease(deferred_queue, "slow", [lost], abandoned.append) as lease:
        await lease.run_once()
    assert (abandoned, lease.lost) == ([lost], {lost.entry})
    assert (await pending(client))["a"][0] == "quick"


async def test_leases_are_renewed_for_as_long_as_the_work_lasts(
    client: "redis.asyncio.Redis", deferred_queue: DeferredQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared_model.deferred.lease.RENEW_SECONDS", 0.02)
    await deferred_queue.submit("a", work("hello"))
    item = await claim_one(deferred_queue, "lane")
    async with Lease(deferred_queue, "lane", [item]) as lease:
        worked_until = time.monotonic() + 1.5
        while time.monotonic() < worked_until:
            assert await DeferredQueue(client).claim("greedy", 10, lease_seconds=1.0) == []
            await asyncio.sleep(0.02)
    assert lease.lost == set()
    deadline = time.monotonic() + 20
    while not await deferred_queue.claim("greedy", 10, lease_seconds=1.0):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_what_is_given_back_was_never_delivered(
    client: "redis.asyncio.Redis", deferred_queue: DeferredQueue
) -> None:
    await deferred_queue.submit("a", work("hello"))
    for _ in range(2 * LAST_DELIVERY):
        item = await claim_one(deferred_queue, "busy")
        assert await deferred_queue.nack("busy", [item]) == 1
        assert await state_of(deferred_queue, "a") is State.ACCEPTED
    # Work that another consumer holds by now is not returned.
    await claim_one(deferred_queue, "other")
    assert await deferred_queue.nack("busy", [item]) == 0
    assert await state_of(deferred_queue, "a") is State.CLAIMED


async def test_a_claim_that_counts_as_no_delivery_leaves_no_suspect(
    client: "redis.asyncio.Redis", deferred_queue: DeferredQueue
) -> None:
    await deferred_queue.submit("a", work("hello"))
    for _ in range(2 * LAST_DELIVERY):
        [item] = await deferred_queue.claim("driver", 10, RAN_OUT, counted=False)
        assert (await pending(client))["a"][2] == 0
    # Earlier deliveries still count after the driver has returned the work.
    await claim_one(deferred_queue, "crashed", RAN_OUT)
    [item] = await deferred_queue.claim("driver", 10, RAN_OUT, counted=False)
    assert await deferred_queue.nack("driver", [item]) == 1
    assert (await pending(client))["a"][2] == 1


@pytest.fixture
def letters(client: "redis.asyncio.Redis") -> DeadLetters:
    return DeadLetters(client, DeferredSettings())


async def dead_letter(deferred_queue: DeferredQueue, *request_ids: str) -> None:
    """Hand each to consumers that die of it."""
    for request_id in request_ids:
        await deferred_queue.submit(request_id, work(request_id))
        for number in range(1, LAST_DELIVERY):
            item = await claim_one(deferred_queue, f"victim-{number}", LONG if number == 1 else RAN_OUT)
            assert item.request_id == request_id
        assert await deferred_queue.claim("survivor", 10, RAN_OUT) == []


async def test_the_third_delivery_goes_to_the_dead_letters(client: "redis.asyncio.Redis", letters: DeadLetters) -> None:
    noticed: list[tuple[Unanswered, int]] = []
    deferred_queue = DeferredQueue(client, on_unanswered=lambda how, count: noticed.append((how, count)))
    await dead_letter(deferred_queue, "poison")
    item = await deferred_queue.get("poison")
    assert item
    assert item.state is State.FAILED
    assert "given up: 2 consumers took it and died" in item.failure
    assert await deferred_queue.waiting() == 0
    [letter] = [it async for it in letters.all()]
    assert (letter.request_id, letter.work, letter.deliveries) == ("poison", work("poison"), 2)
    assert noticed == [(Unanswered.DEAD_LETTER, 1)]
    assert await deferred_queue.submit("poison", work("poison")) == (State.FAILED, True)


async def test_what_is_buried_by_hand_is_a_dead_letter_with_its_reason(
    client: "redis.asyncio.Redis", letters: DeadLetters
) -> None:
    noticed: list[tuple[Unanswered, int]] = []
    deferred_queue = DeferredQueue(client, on_unanswered=lambda how, count: noticed.append((how, count)))
    await deferred_queue.submit("a", work("hello"))
    [item] = await deferred_queue.claim("driver", 1, counted=False)
    assert [await deferred_queue.dead_letter(item, "it fails by itself", "nightly", attempts=2) for _ in range(2)] == [
        True,
        False,
    ]
    found = await deferred_queue.get("a")
    assert found
    assert (found.state, found.failure, found.computed_by) == (State.FAILED, "it fails by itself", "nightly")
    [letter] = [it async for it in letters.all()]
    assert (letter.request_id, letter.work, letter.deliveries) == ("a", work("hello"), 2)
    assert (noticed, await deferred_queue.waiting()) == ([(Unanswered.DEAD_LETTER, 1)], 0)
    assert await letters.replay([letter]) == 1
    assert (await claim_one(deferred_queue, "lane")).work == work("hello")


async def test_what_has_an_answer_is_not_buried(deferred_queue: DeferredQueue, letters: DeadLetters) -> None:
    await deferred_queue.submit("a", work("hello"))
    slow = await claim_one(deferred_queue, "slow")
    quick = await claim_one(deferred_queue, "quick", RAN_OUT)
    await deferred_queue.store_results([(quick, answer("quick"))], "idle")
    assert not await deferred_queue.dead_letter(slow, "too late", "nightly", attempts=2)
    assert await state_of(deferred_queue, "a") is State.SCORED
    assert [it async for it in letters.all()] == []


async def test_a_replayed_letter_is_accepted_with_all_its_deliveries_before_it(
    deferred_queue: DeferredQueue, letters: DeadLetters
) -> None:
    await dead_letter(deferred_queue, "a", "b")
    assert await letters.replay(await letters.find(["a"])) == 1
    assert await state_of(deferred_queue, "a") is State.ACCEPTED
    assert [it.request_id async for it in letters.all()] == ["b"]
    for number in range(1, LAST_DELIVERY):
        item = await claim_one(deferred_queue, f"victim-{number}", RAN_OUT)
    assert await answer_and_acknowledge(deferred_queue, item, answer("r1"), "idle")
    assert await state_of(deferred_queue, "a") is State.PUBLISHED


async def test_a_letter_is_replayed_once_and_an_unknown_one_is_named(
    deferred_queue: DeferredQueue, letters: DeadLetters
) -> None:
    await dead_letter(deferred_queue, "a")
    found = await letters.find(["a"])
    assert [await letters.replay(found), await letters.replay(found)] == [1, 0]
    assert await deferred_queue.waiting() == 1
    with pytest.raises(BadInput, match="'x': no such dead letter"):
        await letters.find(["x"])


async def test_a_letter_whose_id_was_submitted_anew_does_not_come_back(
    client: "redis.asyncio.Redis", deferred_queue: DeferredQueue, letters: DeadLetters
) -> None:
    await dead_letter(deferred_queue, "a")
    await client.delete(keys.deferred_item("a"))  # its time to be kept is over
    await deferred_queue.submit("a", work("anew"))
    assert await letters.replay(await letters.find(["a"])) == 0
    assert (await claim_one(deferred_queue, "lane")).work == work("anew")


async def test_what_was_delivered_before_runs_apart(deferred_queue: DeferredQueue) -> None:
    for request_id in "abc":
        await deferred_queue.submit(request_id, work(request_id))
    await deferred_queue.claim("crashed", 2)
    await deferred_queue.submit("d", work("d"))
    chunks = [[item.request_id for item in await deferred_queue.claim(f"lane-{n}", 9, 0.0, again=1)] for n in range(2)]
    assert chunks == [["a"], ["b"]]


async def test_leases_beyond_those_that_others_hold_are_found(deferred_queue: DeferredQueue) -> None:
    """More are held than one look at the stream covers."""
    count = 1_200
    await deferred_queue.submit_many([Submission(f"{n:04d}", work("hello")) for n in range(count)])
    everything = await deferred_queue.claim("lane", count)
    assert len(everything) == count
    lost = everything[700]
    assert await deferred_queue.nack("lane", [lost]) == 1
    assert await deferred_queue.claim("other", 10) == [lost]


async def test_entries_that_somebody_removed_are_forgotten(
    client: "redis.asyncio.Redis", deferred_queue: DeferredQueue
) -> None:
    for request_id in "ab":
        await deferred_queue.submit(request_id, work(request_id))
    first, second = await deferred_queue.claim("crashed", 2)
    await client.xdel(keys.deferred_stream(), first.entry)
    assert await deferred_queue.claim("lane", 10, RAN_OUT) == [second]
    assert (await client.xpending(keys.deferred_stream(), "tandem"))["pending"] == 1


async def test_scripts_that_were_flushed_are_there_again(
    client: "redis.asyncio.Redis", deferred_queue: DeferredQueue
) -> None:
    await deferred_queue.submit("a", work("hello"))
    await client.script_flush()
    assert await deferred_queue.submit("b", work("hello")) == (State.ACCEPTED, False)
    await client.script_flush()
    assert len(await deferred_queue.claim("lane", 10)) == 2
