"""Deferred requests that the nightly run answers: every one exactly once, by the release it asked for."""

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import redis
import redis.asyncio
from pyspark.sql import SparkSession

from batch_job.drain import COMPUTED_BY, drain
from batch_job.scoring import ScoringOptions
from protos.scoring.v1.scoring_pb2 import DEFERRED, ScoreRequest, ScoreResponse
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model import keys
from shared_model.errors import StoreUnavailable
from shared_model.handoff import Claimed, Handoff, Lease, State
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


class Spark:
    """Stands for scoring in Spark: answers every text, after what a test does meanwhile, or fails."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile

    def score(self, spark: SparkSession, requests: Sequence[Any], options: ScoringOptions) -> list[Any]:
        self._meanwhile()
        text = {"top_k": [], "vector": [], "tokens": 3, "truncated": False, "precision": "bf16", "batch_rows": 1}
        return [[text] for _ in requests]


Replace = Callable[[Callable[[], None]], None]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Replace:
    def replace(what: Callable[[], None]) -> None:
        monkeypatch.setattr("batch_job.drain._score", Spark(what).score)

    return replace


@pytest.fixture
def no_spark() -> Any:
    """Where scoring is replaced, nothing needs it."""
    return None


async def test_leases_are_renewed_while_spark_scores(
    no_spark: Any,
    deferred: "redis.asyncio.Redis",
    redis_client: "redis.Redis",
    options: ScoringOptions,
    meanwhile: Replace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shared_model.handoff.lease.RENEW_SECONDS", 0.05)
    request_id = await submit(deferred, "hello")

    def wait_for_renewals() -> None:
        """Three times it has to be idle for less than it was before."""
        idle, renewals, deadline = 0, 0, time.monotonic() + 20
        while renewals < 3:
            assert time.monotonic() < deadline
            [held] = redis_client.xpending_range(keys.deferred_stream(), "tandem", "-", "+", 1)
            renewals += held["time_since_delivered"] < idle
            idle = held["time_since_delivered"]

    meanwhile(wait_for_renewals)
    assert await drain(no_spark, deferred, options, limit=10) == 1
    item = await Handoff(deferred).get(request_id)
    assert item is not None
    assert item.state is State.PUBLISHED


async def test_what_was_lost_while_spark_scored_is_left_to_whoever_has_it(
    no_spark: Any,
    deferred: "redis.asyncio.Redis",
    redis_url: str,
    options: ScoringOptions,
    meanwhile: Replace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shared_model.handoff.lease.RENEW_SECONDS", 0.01)
    noticed = threading.Event()
    renewed = Lease.run_once

    async def run_once(lease: Lease) -> None:
        await renewed(lease)
        if lease.lost:
            noticed.set()

    monkeypatch.setattr(Lease, "run_once", run_once)
    request_id, kept = await submit(deferred, "taken by an idle lane"), await submit(deferred, "kept")

    async def take() -> None:
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            [taken] = await Handoff(client).claim("lane", 1, lease_seconds=0.0)
            assert taken.request_id == request_id

    def take_and_wait() -> None:
        asyncio.run(take())
        assert noticed.wait(20)

    meanwhile(take_and_wait)
    assert await drain(no_spark, deferred, options, limit=2) == 1
    assert await Handoff(deferred).states([request_id, kept]) == [State.CLAIMED, State.PUBLISHED]


async def test_a_run_that_fails_leaves_its_requests_to_the_next(
    no_spark: Any, deferred: "redis.asyncio.Redis", options: ScoringOptions, meanwhile: Replace
) -> None:
    ids = [await submit(deferred, "hello") for _ in range(3)]

    def fail() -> None:
        raise RuntimeError("an executor died")

    meanwhile(fail)
    with pytest.raises(RuntimeError, match="an executor died"):
        await drain(no_spark, deferred, options, limit=10)
    assert set(await Handoff(deferred).states(ids)) == {State.CLAIMED}
    # Their leases have run out by the next night.
    claimed = await Handoff(deferred).claim("somebody", 10, lease_seconds=0.0, again=10)
    await Handoff(deferred).give_back("somebody", claimed)
    meanwhile(lambda: None)
    assert await drain(no_spark, deferred, options, limit=10) == 3


async def test_a_run_that_died_between_result_and_acknowledgement_is_finished_by_the_next(
    no_spark: Any,
    deferred: "redis.asyncio.Redis",
    options: ScoringOptions,
    meanwhile: Replace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request_id = await submit(deferred, "hello")

    async def die(handoff: Handoff, claimed: Sequence[Claimed]) -> int:
        raise StoreUnavailable("Redis did not answer")

    meanwhile(lambda: None)
    with monkeypatch.context() as dying:
        dying.setattr(Handoff, "publish", die)
        with pytest.raises(StoreUnavailable):
            await drain(no_spark, deferred, options, limit=10)
    assert await Handoff(deferred).states([request_id]) == [State.SCORED]
    assert await Handoff(deferred).claim("next", 10, lease_seconds=0.0) == []
    item = await Handoff(deferred).get(request_id)
    assert item is not None
    assert (item.state, item.computed_by) == (State.PUBLISHED, COMPUTED_BY)
