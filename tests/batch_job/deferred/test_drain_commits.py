"""The drain commits, or answers from the table, every request once, whatever dies in between."""

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
import redis.asyncio
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from batch_job import read_scores
from batch_job.deferred.draining import drain
from batch_job.deferred.scores import DeferredScores, row_id
from batch_job.progress import Progress
from batch_job.scoring.options import ScoringOptions
from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport, Target, write_file
from batch_job.tables import table
from protos.scoring.v1.scoring_pb2 import ScoreRequest, ScoreResponse
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model.deferred import DeferredQueue, State
from shared_model.errors import JobError
from shared_model.releases.store import Release
from tests.batch_job.conftest import DAY
from tests.batch_job.deferred.deferring import Spark, committed, forget_leases, letters, row, submit

pytestmark = pytest.mark.default_release

NEXT = "2026-01-15"


async def answer(client: "redis.asyncio.Redis", request_id: str) -> ScoreResponse:
    item = await DeferredQueue(client).get(request_id)
    assert item is not None
    assert item.response is not None
    return item.response


def commit_archive(scores: DeferredScores, release: Release, texts: Sequence[str], precision: str = "bf16") -> None:
    """A day of these texts, each with the score 0.25."""
    spark = Spark(release)
    spark.gives = 0.25
    batch = pa.RecordBatch.from_pylist([{**spark.row(text), "precision": precision} for text in texts], schemas.SCORES)
    file = FileReport(*write_file(Target(str(scores.folder), scores.ds, "plan", 1), schemas.SCORES, [batch]))
    table.replace_partition(scores.folder, scores.ds, [file], 1, lambda: None, {})


async def test_what_is_committed_is_what_is_answered(
    spark: SparkSession,
    deferred: "redis.asyncio.Redis",
    options: ScoringOptions,
    scores: DeferredScores,
    release: Release,
) -> None:
    one, two = await submit(deferred, "where is my card"), await submit(deferred, "help", "I forgot my passcode")
    request = ScoreRequest(texts=["where is my card"], request_id="hers")
    await DeferredQueue(deferred).submit("token:alice/hers", DeferredWork(request=request, accepted_at_ms=1))
    assert await drain(spark, deferred, options, scores, limit=10) == 3
    assert (await answer(deferred, "token:alice/hers")).request_id == "hers"
    found = {row["id"]: row for row in read_scores(spark, scores.folder, DAY).collect()}
    assert {(row["id"], row["source"]) for row in found.values()} == {
        (one, "deferred"),
        ("token:alice/hers", "deferred"),
        (f"{two}#0", "deferred"),
        (f"{two}#1", "deferred"),
    }
    for request_id, ids in ((one, [one]), (two, [f"{two}#0", f"{two}#1"])):
        response = await answer(deferred, request_id)
        assert (response.release, response.precision) == (release.id, found[ids[0]]["precision"])
        for result, each in zip(response.results, ids, strict=True):
            assert (result.labels[0].name, result.labels[0].score) == (found[each]["label"], found[each]["score"])
            assert result.tokens == found[each]["tokens"]
    assert found[one]["text_hash"] == schemas.text_hash("where is my card")
    assert found[one]["encoding_key"] == release.encoder().key(release.encoder().encode("where is my card"))


@pytest.mark.parametrize("compiled", ["bf16", "fp32"])
async def test_what_the_day_holds_is_answered_from_there_and_not_run(
    faked: Spark,
    deferred: "redis.asyncio.Redis",
    options: ScoringOptions,
    scores: DeferredScores,
    release: Release,
    compiled: str,
) -> None:
    """Whatever the executors' CPU made of the BF16 that it was asked for."""
    commit_archive(scores, release, ["where is my card", "help"], compiled)
    known, mixed = await submit(deferred, "Where is my card"), await submit(deferred, "help", "a new text")
    new = await submit(deferred, "another new text")
    assert await drain(None, deferred, options, scores, limit=10) == 3
    assert faked.ran == ["a new text", "another new text"]
    assert [[each.labels[0].score for each in (await answer(deferred, it)).results] for it in (known, mixed, new)] == [
        [0.25],
        [0.25, 0.5],
        [0.5],
    ]
    reasons = [(await answer(deferred, it)).reason for it in (known, mixed, new)]
    drained = "deferred: drained by the nightly run"
    assert reasons == [
        f"{drained}; 1 of 1 texts had been scored before",
        f"{drained}; 1 of 2 texts had been scored before",
        drained,
    ]
    assert (await answer(deferred, known)).batch_size == 0
    assert sorted(row["id"] for row in committed(scores)) == sorted([known, f"{mixed}#0", f"{mixed}#1", new])


@pytest.mark.parametrize(("int8", "other"), [(False, "int8"), (False, "fp16"), (True, "bf16"), (True, "fp32")])
async def test_scores_of_another_precision_release_or_day_are_no_answer(
    faked: Spark,
    deferred: "redis.asyncio.Redis",
    options: ScoringOptions,
    scores: DeferredScores,
    release: Release,
    int8: bool,
    other: str,
) -> None:
    options = replace(options, int8=int8)
    commit_archive(scores, release, ["of another precision"], precision=other)
    commit_archive(replace(scores, ds=NEXT), release, ["of another day"])
    for text in ("of another precision", "of another day"):
        await submit(deferred, text)
    assert await drain(None, deferred, options, scores, limit=10) == 2
    assert sorted(faked.ran) == ["of another day", "of another precision"]


async def test_what_the_model_cannot_tell_apart_is_run_once(
    faked: Spark,
    deferred: "redis.asyncio.Redis",
    options: ScoringOptions,
    scores: DeferredScores,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within a chunk and across chunks."""
    monkeypatch.setattr("batch_job.deferred.draining._CHUNK", 2)
    texts = ("Help", "help", "HELP", "new")
    ids = [await submit(deferred, text) for text in texts]
    assert await drain(None, deferred, options, scores, limit=10) == 4
    assert [text.lower() for text in faked.ran] == ["help", "new"]
    hashes = {row["id"]: row["text_hash"] for row in committed(scores)}
    assert hashes == {each: schemas.text_hash(text) for each, text in zip(ids, texts, strict=True)}


async def test_a_long_drain_says_how_many_of_those_that_wait_are_answered(
    faked: Spark,
    deferred: "redis.asyncio.Redis",
    options: ScoringOptions,
    scores: DeferredScores,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = threading.Event()
    # The second chunk is scored after the line of the first.
    faked.meanwhile = lambda: asserted(len(faked.ran) == 1 or told.wait(10))
    line = "answering: 1 of 2 deferred requests (50%) in"
    monkeypatch.setattr("batch_job.deferred.draining._CHUNK", 1)
    monkeypatch.setattr("batch_job.deferred.draining.Progress", partial(Progress, seconds=0.01))
    monkeypatch.setattr("batch_job.progress.log", lambda said: line in said and told.set())
    for text in ("one", "two", "beyond the limit"):
        await submit(deferred, text)
    assert await drain(None, deferred, options, scores, limit=2) == 2


def asserted(holds: bool) -> None:
    assert holds


def die_before_results(url: str, options: ScoringOptions, scores: DeferredScores) -> None:
    """In a process of its own: a drain that is killed after its commit."""

    async def die(deferred_queue: DeferredQueue, answers: object, computed_by: str) -> list[bool]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []

    async def run() -> None:
        async with redis.asyncio.Redis.from_url(url) as client:
            await drain(None, client, options, scores, limit=10)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("batch_job.deferred.answering._score", Spark(options.store().open(options.release)).score)
        patch.setattr(DeferredQueue, "store_results", die)
        asyncio.run(run())


@pytest.mark.parametrize("next_run", [DAY, NEXT], ids=["the same day again", "the next night"])
async def test_a_driver_killed_between_commit_and_results_commits_nothing_twice(
    faked: Spark,
    deferred: "redis.asyncio.Redis",
    redis_url: str,
    options: ScoringOptions,
    scores: DeferredScores,
    next_run: str,
) -> None:
    ids = [await submit(deferred, text) for text in ("help", "where is my card")]
    spawn = multiprocessing.get_context("spawn")
    driver = spawn.Process(target=die_before_results, args=(redis_url, options, scores))
    driver.start()
    await asyncio.to_thread(driver.join, 60)
    assert driver.exitcode == -signal.SIGKILL
    assert sorted(row["id"] for row in committed(scores)) == sorted(ids)
    assert set(await DeferredQueue(deferred).states(ids)) == {State.CLAIMED}
    version = DeltaTable(str(scores.folder)).version()
    await forget_leases(deferred)

    faked.gives = 0.75
    assert await drain(None, deferred, options, replace(scores, ds=next_run), limit=10) == 2
    assert DeltaTable(str(scores.folder)).version() == version
    assert set(await DeferredQueue(deferred).states(ids)) == {State.PUBLISHED}
    assert {(await answer(deferred, it)).results[0].labels[0].score for it in ids} == {0.5}
    assert await letters(deferred) == []


async def test_nothing_is_answered_that_is_not_committed(
    faked: Spark,
    deferred: "redis.asyncio.Redis",
    options: ScoringOptions,
    scores: DeferredScores,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request_id = await submit(deferred, "hello")

    def full(*arguments: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("batch_job.deferred.scores.write_file", full)
        with pytest.raises(JobError, match="No space left"):
            await drain(None, deferred, options, scores, limit=10)
    assert await DeferredQueue(deferred).states([request_id]) == [State.CLAIMED]
    await forget_leases(deferred)
    assert await drain(None, deferred, options, scores, limit=10) == 1
    assert [row["id"] for row in committed(scores)] == [request_id]


def test_a_request_that_a_day_of_another_input_answered_is_not_committed_again(tmp_path: Path) -> None:
    """The driver died after its commit, and the next night that drains is another input's, with a table of its own."""
    theirs, mine = tmp_path / "scores", tmp_path / "inputs" / "mine" / "scores"
    answer = {**row("a"), "id": "same"}
    assert DeferredScores(theirs, DAY, unfinished_seconds=3600).commit([answer]) == [answer]
    others = (theirs, tmp_path / "none")
    again = DeferredScores(mine, NEXT, 3600, others).commit([{**answer, "score": 0.1}])
    assert again[0]["score"] == answer["score"]
    assert not list(mine.glob("ds=*/**/*.parquet"))


def test_a_request_that_was_forgotten_may_come_again(tmp_path: Path) -> None:
    """Its rows of long ago, or of another text, are not taken for its own."""
    scores = DeferredScores(tmp_path, DAY, unfinished_seconds=3600)
    first = {**row("a"), "id": "same"}
    other = {**row("b", score=0.75), "id": "same"}
    assert scores.commit([first]) == [first]
    assert scores.commit([other])[0]["score"] == 0.75
    assert scores.commit([{**first, "score": 0.1}])[0]["score"] == 0.5
    assert len(committed(scores)) == 2
    forgetful = DeferredScores(tmp_path, NEXT, unfinished_seconds=-1)
    assert forgetful.commit([{**first, "score": 0.1}])[0]["score"] == 0.1
    assert len(committed(forgetful)) == 1


@given(st.dictionaries(st.text("a#0", min_size=1, max_size=5), st.integers(1, 3), max_size=8))
def test_no_two_texts_of_any_requests_share_an_id(requests: dict[str, int]) -> None:
    named = [row_id(request, position, count) for request, count in requests.items() for position in range(count)]
    assert len(set(named)) == len(named)
    assert row_id("order 7", 0, 1) == "order 7"
