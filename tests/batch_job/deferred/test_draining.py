"""Deferred requests that the nightly run answers: every one exactly once, by the release it asked for."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
import redis
import redis.asyncio
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from batch_job.deferred.draining import COMPUTED_BY, drain
from batch_job.deferred.scores import DeferredScores
from batch_job.scoring.options import ScoringOptions
from batch_job.shards import schemas
from protos.scoring.v1.scoring_pb2 import DEFERRED, ScoreRequest, ScoreResponse
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model import tracing
from shared_model.deferred import Claimed, DeferredQueue, Lease, State
from shared_model.deferred.scripts import GROUP
from shared_model.deferred.store import LAST_DELIVERY
from shared_model.errors import JobError, StoreUnavailable
from shared_model.redis_store import keys
from shared_model.releases.store import Release, Store
from tests.batch_job.deferred.deferring import Spark, committed, letters, row, submit
from tests.otlp import Collector, collecting

pytestmark = pytest.mark.default_release


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as own:
        yield own


async def test_every_request_has_exactly_one_answer(
    spark: SparkSession,
    deferred: "redis.asyncio.Redis",
    options: ScoringOptions,
    scores: DeferredScores,
    release: Release,
) -> None:
    ids = [await submit(deferred, f"where is card {number}") for number in range(40)]
    texts = ("my card has not arrived", "I forgot my passcode", "help")
    several = await submit(deferred, *texts, top_k=5)
    assert await drain(spark, deferred, options, scores, limit=1_000) == 41
    deferred_queue = DeferredQueue(deferred)
    for request_id in ids:
        item = await deferred_queue.get(request_id)
        assert item is not None
        assert (item.state, item.computed_by) == (State.PUBLISHED, COMPUTED_BY)
    assert await deferred_queue.waiting() == 0
    assert await drain(spark, deferred, options, scores, limit=1_000) == 0

    item = await deferred_queue.get(several)
    assert item is not None
    assert item.response is not None
    assert [len(result.labels) for result in item.response.results] == [5, 5, 5]
    encoder = release.encoder()
    assert [result.tokens for result in item.response.results] == [encoder.encode(text).tokens for text in texts]
    assert item.response.results[1].labels[0].name == "passcode_forgotten"
    assert (item.response.path, item.response.release, item.response.request_id) == (DEFERRED, release.id, several)
    assert 1 <= item.response.batch_size <= 64


@pytest.mark.parametrize("sampler", ["parentbased_always_on", "parentbased_always_off"])
async def test_an_answer_is_a_part_of_the_trace_that_its_request_came_with(
    spark: SparkSession,
    deferred: "redis.asyncio.Redis",
    options: ScoringOptions,
    scores: DeferredScores,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    sampler: str,
) -> None:
    """Whether or not the night is traced itself; of a trace that is, the request's names it."""
    for name, value in collector.environment(OTEL_TRACES_SAMPLER=sampler).items():
        monkeypatch.setenv(name, value)
    answered, unanswered, unsampled = (f"{number:032x}" for number in (0xA, 0xB, 0xC))
    await submit(deferred, "hello", traceparent=f"00-{answered}-{1:016x}-01")
    await submit(deferred, "hello", model="nowhere", traceparent=f"00-{unanswered}-{1:016x}-01")
    await submit(deferred, "hello", traceparent=f"00-{unsampled}-{1:016x}-00")
    with tracing.program("drain", "night"):
        night = tracing.current()
        await drain(spark, deferred, options, scores, limit=10)
    nights = () if night is None else (night.ids["span_id"],)
    for trace, failed in ((answered, False), (unanswered, True)):
        (span,) = collector.until(trace, {"process deferred"})
        assert (span.parent, span.kind, span.failed, span.links) == (f"{1:016x}", "CONSUMER", failed, nights)
        assert span.began < span.ended
    assert collector.of(unsampled) == []


async def test_an_answer_that_came_first_stands(
    spark: SparkSession, deferred: "redis.asyncio.Redis", options: ScoringOptions, scores: DeferredScores
) -> None:
    """An idle lane whose lease ran out answers first; the run's answer is dropped."""
    request_id = await submit(deferred, "hello")
    deferred_queue = DeferredQueue(deferred)
    [held] = await deferred_queue.claim("lane", 10)
    await deferred_queue.store_results([(held, ScoreResponse(reason="first"))], "idle")
    await deferred_queue.acknowledge([held])
    assert await drain(spark, deferred, options, scores, limit=10) == 0
    item = await deferred_queue.get(request_id)
    assert item is not None
    assert item.response is not None
    assert (item.response.reason, item.computed_by) == ("first", "idle")


async def test_a_run_takes_no_more_than_its_limit(
    spark: SparkSession, deferred: "redis.asyncio.Redis", options: ScoringOptions, scores: DeferredScores
) -> None:
    for _ in range(7):
        await submit(deferred, "hello")
    assert await drain(spark, deferred, options, scores, limit=5) == 5
    assert await DeferredQueue(deferred).waiting() == 2


async def test_a_release_that_is_not_here_fails_its_request_and_no_other(
    spark: SparkSession, deferred: "redis.asyncio.Redis", options: ScoringOptions, scores: DeferredScores
) -> None:
    gone = await submit(deferred, "hello", release="gone-0123456789ab")
    other = await submit(deferred, "hello", release=options.release)
    assert await drain(spark, deferred, options, scores, limit=10) == 2
    deferred_queue = DeferredQueue(deferred)
    failed, answered = await deferred_queue.get(gone), await deferred_queue.get(other)
    assert failed is not None
    assert answered is not None
    assert (failed.state, answered.state) == (State.FAILED, State.PUBLISHED)
    assert "gone-0123456789ab is not in" in failed.failure


async def test_a_pair_for_a_release_of_single_texts_fails_and_no_other(
    spark: SparkSession, deferred: "redis.asyncio.Redis", options: ScoringOptions, scores: DeferredScores
) -> None:
    request = ScoreRequest(texts=["hello"], text_pairs=["you"], request_id="pair")
    await DeferredQueue(deferred).submit("pair", DeferredWork(request=request, accepted_at_ms=1))
    other = await submit(deferred, "hello")
    assert await drain(spark, deferred, options, scores, limit=10) == 2
    failed, answered = await DeferredQueue(deferred).get("pair"), await DeferredQueue(deferred).get(other)
    assert failed is not None
    assert answered is not None
    assert (failed.state, answered.state) == (State.FAILED, State.PUBLISHED)
    assert "text_pairs: is set, but this release reads single texts" in failed.failure


def poisoned(batches: Iterator[pa.RecordBatch], options: ScoringOptions) -> Iterator[pa.RecordBatch]:
    """In a worker, in the place of an engine: a text of the one kind raises, one of the other kills it."""
    schema = schemas.SCORES.append(pa.field("batch_rows", pa.int32()))
    heads = Store(options.releases_root).open(options.release).heads
    for batch in batches:
        for number, text in zip(batch.column("id").to_pylist(), batch.column("text").to_pylist(), strict=True):
            if "raises" in text:
                raise ValueError("cannot be read")
            if "kills" in text:
                os.kill(os.getpid(), signal.SIGKILL)
            yield pa.RecordBatch.from_pylist([{**row(text, heads=heads), "id": number, "batch_rows": 1}], schema)


async def test_what_fails_by_itself_becomes_a_dead_letter_and_the_others_are_answered(
    spark: SparkSession,
    deferred: "redis.asyncio.Redis",
    options: ScoringOptions,
    scores: DeferredScores,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harmless, raises, kills = [await submit(deferred, text) for text in ("where is my card", "raises", "kills")]
    monkeypatch.setattr("batch_job.deferred.answering.score_texts", poisoned)
    assert await drain(spark, deferred, options, scores, limit=100) == 3
    assert await DeferredQueue(deferred).states([harmless, raises, kills]) == [
        State.PUBLISHED,
        State.FAILED,
        State.FAILED,
    ]
    for request_id, said in ((raises, "ValueError: cannot be read"), (kills, "")):
        item = await DeferredQueue(deferred).get(request_id)
        assert item is not None
        assert item.failure.startswith("the nightly run tried it 2 times by itself: ")
        assert said in item.failure
    assert [(letter.request_id, letter.deliveries) for letter in await letters(deferred)] == [(raises, 2), (kills, 2)]
    assert await DeferredQueue(deferred).waiting() == 0
    assert [each["id"] for each in committed(scores)] == [harmless]


Replace = Callable[[Callable[[], None]], None]


@pytest.fixture
def meanwhile(faked: Spark) -> Replace:
    def replace(what: Callable[[], None]) -> None:
        faked.meanwhile = what

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
    scores: DeferredScores,
    meanwhile: Replace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shared_model.deferred.lease.RENEW_SECONDS", 0.05)
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
    assert await drain(no_spark, deferred, options, scores, limit=10) == 1
    item = await DeferredQueue(deferred).get(request_id)
    assert item is not None
    assert item.state is State.PUBLISHED


async def test_what_was_lost_while_spark_scored_is_left_to_whoever_has_it(
    no_spark: Any,
    deferred: "redis.asyncio.Redis",
    redis_url: str,
    options: ScoringOptions,
    scores: DeferredScores,
    meanwhile: Replace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shared_model.deferred.lease.RENEW_SECONDS", 0.01)
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
            [taken] = await DeferredQueue(client).claim("lane", 1, lease_seconds=0.0)
            assert taken.request_id == request_id

    def take_and_wait() -> None:
        asyncio.run(take())
        assert noticed.wait(20)

    meanwhile(take_and_wait)
    assert await drain(no_spark, deferred, options, scores, limit=2) == 1
    assert await DeferredQueue(deferred).states([request_id, kept]) == [State.CLAIMED, State.PUBLISHED]


async def test_a_run_that_fails_leaves_its_requests_to_the_next(
    no_spark: Any, deferred: "redis.asyncio.Redis", options: ScoringOptions, scores: DeferredScores, meanwhile: Replace
) -> None:
    ids = [await submit(deferred, "hello") for _ in range(3)]

    def fail() -> None:
        raise RuntimeError("an executor died")

    meanwhile(fail)
    with pytest.raises(RuntimeError, match="an executor died"):
        await drain(no_spark, deferred, options, scores, limit=10)
    assert set(await DeferredQueue(deferred).states(ids)) == {State.CLAIMED}
    # Their leases have run out by the next night.
    claimed = await DeferredQueue(deferred).claim("somebody", 10, lease_seconds=0.0, again=10)
    await DeferredQueue(deferred).nack("somebody", claimed)
    meanwhile(lambda: None)
    assert await drain(no_spark, deferred, options, scores, limit=10) == 3


async def test_where_a_harmless_text_fails_too_no_request_is_blamed(
    no_spark: Any, deferred: "redis.asyncio.Redis", options: ScoringOptions, scores: DeferredScores, meanwhile: Replace
) -> None:
    ids = [await submit(deferred, f"card {number}") for number in range(3)]

    def fail() -> None:
        raise PythonException("no space left on device")

    meanwhile(fail)
    with pytest.raises(JobError, match=r"not even a harmless text can be scored, .*: no space left on device"):
        await drain(no_spark, deferred, options, scores, limit=100)
    assert set(await DeferredQueue(deferred).states(ids)) == {State.CLAIMED}
    assert await letters(deferred) == []


async def test_a_driver_that_dies_again_and_again_buries_nothing(
    no_spark: Any, deferred: "redis.asyncio.Redis", options: ScoringOptions, scores: DeferredScores, meanwhile: Replace
) -> None:
    ids = [await submit(deferred, "hello") for _ in range(3)]

    def die() -> None:
        raise RuntimeError("killed")

    meanwhile(die)
    for _ in range(LAST_DELIVERY + 1):
        with pytest.raises(RuntimeError, match="killed"):
            await drain(no_spark, deferred, options, scores, limit=10)
        # Its lease runs out.
        held = await held_entries(deferred)
        await deferred.xclaim(keys.deferred_stream(), GROUP, "dead", 0, held, idle=60_000, justid=True)
    meanwhile(lambda: None)
    assert await drain(no_spark, deferred, options, scores, limit=10) == 3
    assert set(await DeferredQueue(deferred).states(ids)) == {State.PUBLISHED}
    assert await letters(deferred) == []


async def held_entries(client: "redis.asyncio.Redis") -> list[bytes]:
    held = await client.xpending_range(keys.deferred_stream(), GROUP, "-", "+", 100)
    return [row["message_id"] for row in held]


async def test_a_run_that_died_between_result_and_acknowledgement_is_finished_by_the_next(
    no_spark: Any,
    deferred: "redis.asyncio.Redis",
    options: ScoringOptions,
    scores: DeferredScores,
    meanwhile: Replace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request_id = await submit(deferred, "hello")

    async def die(deferred_queue: DeferredQueue, claimed: Sequence[Claimed]) -> int:
        raise StoreUnavailable("Redis did not answer")

    meanwhile(lambda: None)
    with monkeypatch.context() as dying:
        dying.setattr(DeferredQueue, "acknowledge", die)
        with pytest.raises(StoreUnavailable):
            await drain(no_spark, deferred, options, scores, limit=10)
    assert await DeferredQueue(deferred).states([request_id]) == [State.SCORED]
    assert await DeferredQueue(deferred).claim("next", 10, lease_seconds=0.0) == []
    item = await DeferredQueue(deferred).get(request_id)
    assert item is not None
    assert (item.state, item.computed_by) == (State.PUBLISHED, COMPUTED_BY)


async def test_where_too_much_fails_by_itself_the_rest_waits_for_the_next_run(
    faked: Spark,
    deferred: "redis.asyncio.Redis",
    options: ScoringOptions,
    scores: DeferredScores,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("batch_job.deferred.answering.MOST_POISON", 1)
    ids = [await submit(deferred, text) for text in ("good", "poison 1", "poison 2", "poison 3", "fine")]
    score = faked.score

    def taste(spark: SparkSession, texts: Sequence[str], options: ScoringOptions) -> Any:
        if any("poison" in text for text in texts):
            raise PythonException("poison")
        return score(spark, texts, options)

    monkeypatch.setattr("batch_job.deferred.answering._score", taste)
    assert await drain(None, deferred, options, scores, limit=100) == 3
    expected = [State.PUBLISHED, State.FAILED, State.FAILED, State.ACCEPTED, State.ACCEPTED]
    assert await DeferredQueue(deferred).states(ids) == expected
    assert await drain(None, deferred, options, scores, limit=100) == 2
    assert await DeferredQueue(deferred).states(ids[3:]) == [State.FAILED, State.PUBLISHED]
