"""Published scores follow the pointer, forward and back; only the epoch it names is asked."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
import redis
import redis.asyncio

from protos.scoring.v1.storage_pb2 import PublishedScore
from realtime_service.models.precomputed import PrecomputedScores
from realtime_service.process.redis_connections import low_latency_client
from shared_model.clock import SystemClock
from shared_model.published import epochs
from shared_model.published.epochs import Epoch
from shared_model.published.publish import publish
from shared_model.redis_store import clients, keys

RELEASE = "small-0123456789ab"
KEY = bytes(range(16))


@pytest.fixture
async def client(redis_url: str) -> "AsyncIterator[redis.asyncio.Redis]":
    async with redis.asyncio.Redis.from_url(redis_url) as own:
        yield own


def publish_day(client: "redis.Redis", ds: str, label: int) -> None:
    publish(client, Epoch(RELEASE, "bf16", ds, 1), [(KEY, PublishedScore(labels=[label], scores=[0.5]))])


async def label(published: PrecomputedScores) -> int | None:
    found = await published.find([KEY], slack=1.0)
    return found[0].labels[0] if found else None


async def test_after_a_rollback_the_epoch_before_answers(
    client: "redis.asyncio.Redis", redis_client: "redis.Redis"
) -> None:
    published = PrecomputedScores(client, RELEASE, SystemClock())
    for ds, number in (("2026-01-14", 14), ("2026-01-15", 15)):
        publish_day(redis_client, ds, number)
        await published.refresh(client)
        assert (published.epoch, await label(published)) == (f"{ds}.1", number)
    epochs.roll_back(redis_client, RELEASE, "2026-01-15", latest_token=1)
    # An epoch that was rolled back answers nothing from that moment, even before the pointer is read again.
    assert await label(published) is None
    await published.refresh(client)
    assert (published.epoch, await label(published)) == ("2026-01-14.1", 14)
    epochs.roll_back(redis_client, RELEASE, "2026-01-14", latest_token=1)
    await published.refresh(client)
    assert (published.epoch, await label(published)) == ("", None)


async def test_an_epoch_that_has_expired_is_not_stood_in_for_by_another(
    client: "redis.asyncio.Redis", redis_client: "redis.Redis"
) -> None:
    published = PrecomputedScores(client, RELEASE, SystemClock())
    publish_day(redis_client, "2026-01-14", 14)
    await published.refresh(client)
    publish_day(redis_client, "2026-01-15", 15)
    redis_client.delete(keys.epoch_facts(RELEASE, "2026-01-15.1"))
    await published.refresh(client)
    assert (published.epoch, await label(published)) == ("", None)


async def test_a_cancelled_look_up_leaves_its_reply_to_nobody(
    client: "redis.asyncio.Redis", redis_client: "redis.Redis"
) -> None:
    """A connection whose reply was not read would give it to the next look-up."""
    # A client has at most a hundred connections.
    text_keys = [number.to_bytes(16, "big") for number in range(90)]
    scores = [PublishedScore(labels=[number], scores=[0.5]) for number in range(90)]
    publish(redis_client, Epoch(RELEASE, "bf16", "2026-01-14", 1), list(zip(text_keys, scores, strict=True)))
    published = PrecomputedScores(client, RELEASE, SystemClock())
    await published.refresh(client)
    cancelled, answers = 0, []

    async def look_up(number: int) -> None:
        found = await published.find([text_keys[number]], slack=1.0)
        answers.append((number, found[0].labels[0] if found else None))

    # As many turns as it takes: how many look-ups are cancelled in time depends on the speed of the host.
    for turn in itertools.cycle(range(20)):
        if turn == 0 and cancelled > 100:
            break
        tasks = [asyncio.create_task(look_up(number)) for number in range(90)]
        # By now some wait for a connection, some for their reply.
        for _ in range(turn):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled += sum(isinstance(it, asyncio.CancelledError) for it in ended)
    assert sum(label is not None for _, label in answers) > 300
    assert [it for it in answers if it[1] not in (it[0], None)] == []


async def test_a_burst_of_look_ups_does_not_wait_or_end_those_after_it(
    redis_url: str, redis_client: "redis.Redis"
) -> None:
    publish_day(redis_client, "2026-01-14", 14)
    assert low_latency_client(redis_url, timeout=5.0).free.seconds == 0
    async with clients.connect_asyncio(redis_url, timeout=5.0, connect_timeout=5.0, patience=0.0) as client:
        published = PrecomputedScores(client, RELEASE, SystemClock())
        await published.refresh(client)
        # More at once than the client has connections: some are not answered.
        burst = await asyncio.gather(*(label(published) for _ in range(300)))
        assert set(burst) == {14, None}
        assert await label(published) == 14
