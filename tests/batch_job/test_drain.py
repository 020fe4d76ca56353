"""Deferred requests that the nightly run answers: every one exactly once, by the release it asked for."""

import uuid
from collections.abc import AsyncIterator

import pytest
import redis.asyncio
from pyspark.sql import SparkSession

from batch_job.drain import COMPUTED_BY, drain
from batch_job.scoring import ScoringOptions
from protos.scoring.v1.scoring_pb2 import DEFERRED, ScoreRequest, ScoreResponse
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model.handoff import Handoff, State
from shared_model.releases.store import Release


@pytest.fixture
async def deferred(redis_url: str) -> "AsyncIterator[redis.asyncio.Redis]":
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        yield client


async def submit(client: "redis.asyncio.Redis", *texts: str, top_k: int = 0, release: str = "") -> str:
    request_id = uuid.uuid4().hex
    request = ScoreRequest(texts=texts, top_k=top_k, release=release, request_id=request_id)
    await Handoff(client).submit(request_id, DeferredWork(request=request, accepted_at_ms=1))
    return request_id


async def test_every_request_has_exactly_one_answer(
    spark: SparkSession, deferred: "redis.asyncio.Redis", options: ScoringOptions, release: Release
) -> None:
    ids = [await submit(deferred, f"where is card {number}") for number in range(40)]
    texts = ("my card has not arrived", "I forgot my passcode", "help")
    several = await submit(deferred, *texts, top_k=5)
    assert await drain(spark, deferred, options, limit=1_000) == 41
    handoff = Handoff(deferred)
    for request_id in ids:
        item = await handoff.get(request_id)
        assert item is not None
        assert (item.state, item.computed_by) == (State.PUBLISHED, COMPUTED_BY)
    assert await handoff.waiting() == 0
    assert await drain(spark, deferred, options, limit=1_000) == 0

    item = await handoff.get(several)
    assert item is not None
    assert item.response is not None
    assert [len(result.labels) for result in item.response.results] == [5, 5, 5]
    encoder = release.encoder()
    assert [result.tokens for result in item.response.results] == [encoder.encode(text).tokens for text in texts]
    assert item.response.results[1].labels[0].name == "passcode_forgotten"
    assert (item.response.path, item.response.release, item.response.request_id) == (DEFERRED, release.id, several)
    assert 1 <= item.response.batch_size <= 64


async def test_an_answer_that_came_first_stands(
    spark: SparkSession, deferred: "redis.asyncio.Redis", options: ScoringOptions
) -> None:
    """An idle lane whose lease ran out answers first; the run's answer is dropped."""
    request_id = await submit(deferred, "hello")
    handoff = Handoff(deferred)
    [held] = await handoff.claim("lane", 10)
    await handoff.score([(held, ScoreResponse(reason="first"))], "idle")
    await handoff.publish([held])
    assert await drain(spark, deferred, options, limit=10) == 0
    item = await handoff.get(request_id)
    assert item is not None
    assert item.response is not None
    assert (item.response.reason, item.computed_by) == ("first", "idle")


async def test_a_run_takes_no_more_than_its_limit(
    spark: SparkSession, deferred: "redis.asyncio.Redis", options: ScoringOptions
) -> None:
    for _ in range(7):
        await submit(deferred, "hello")
    assert await drain(spark, deferred, options, limit=5) == 5
    assert await Handoff(deferred).waiting() == 2


async def test_a_release_that_is_not_here_fails_its_request_and_no_other(
    spark: SparkSession, deferred: "redis.asyncio.Redis", options: ScoringOptions
) -> None:
    gone = await submit(deferred, "hello", release="gone-0123456789ab")
    other = await submit(deferred, "hello", release=options.release)
    assert await drain(spark, deferred, options, limit=10) == 2
    handoff = Handoff(deferred)
    failed, answered = await handoff.get(gone), await handoff.get(other)
    assert failed is not None
    assert answered is not None
    assert (failed.state, answered.state) == (State.FAILED, State.PUBLISHED)
    assert "gone-0123456789ab is not in" in failed.failure


async def test_a_pair_for_a_release_of_single_texts_fails_and_no_other(
    spark: SparkSession, deferred: "redis.asyncio.Redis", options: ScoringOptions
) -> None:
    request = ScoreRequest(texts=["hello"], text_pairs=["you"], request_id="pair")
    await Handoff(deferred).submit("pair", DeferredWork(request=request, accepted_at_ms=1))
    other = await submit(deferred, "hello")
    assert await drain(spark, deferred, options, limit=10) == 2
    failed, answered = await Handoff(deferred).get("pair"), await Handoff(deferred).get(other)
    assert failed is not None
    assert answered is not None
    assert (failed.state, answered.state) == (State.FAILED, State.PUBLISHED)
    assert "text_pairs: is set, but this release reads single texts" in failed.failure
