"""Answer deferred requests in the nightly run: what no idle lane took by day, Spark takes by night."""

import asyncio
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import pyarrow as pa
import redis.asyncio
from pyspark.sql import SparkSession

from batch_job import rows, scoring
from batch_job.scoring import ScoringOptions
from batch_job.workers import slots_of
from protos.scoring.v1.scoring_pb2 import DEFERRED, Label, Result, ScoreResponse
from shared_model.encoding import Text
from shared_model.errors import BadInput, ReleaseError
from shared_model.handoff import DEFAULTS, Claimed, Handoff, Lease
from shared_model.releases.store import Release
from shared_model.settings import DeferredSettings
from shared_model.types import TOP_K

COMPUTED_BY = "nightly"

#: Requests claimed at a time.
_CHUNK = 2_000
#: Of those that others had and did not finish: a run that fails for one of them has fewer to leave behind.
_CHUNK_AGAIN = 100
#: Labels of a request that does not say how many.
_DEFAULT_LABELS = 3

_TEXTS = pa.schema([("item", pa.int32()), ("position", pa.int32()), ("text", pa.string()), ("pair", pa.string())])
#: The rows of one request's texts, in their order.
_Answers = list[dict[str, Any]]

_ANSWERS_DDL = (
    "item int, position int, top_k array<struct<label: string, score: float>>, vector array<float>, tokens int, "
    "truncated boolean, precision string, batch_rows int"
)


async def drain(
    spark: SparkSession,
    client: "redis.asyncio.Redis",
    options: ScoringOptions,
    limit: int,
    deferred: DeferredSettings = DEFAULTS,
) -> int:
    """Claim, score and publish up to `limit` requests; returns how many this run answered.

    Only the driver speaks to Redis: a task that Spark runs twice must not publish twice.
    Raises: StoreUnavailable; what was claimed then returns to the others when its lease is over.
    """
    handoff, consumer = Handoff(client, deferred), f"nightly-{socket.gethostname()}-{os.getpid()}"
    taken = answered = 0
    while taken < limit:
        claimed = await handoff.claim(consumer, min(_CHUNK, limit - taken), again=_CHUNK_AGAIN)
        if not claimed:
            break
        taken += len(claimed)
        # Spark scores in a thread, so that leases are renewed meanwhile.
        async with Lease(handoff, consumer, claimed) as lease:
            for release, items in _by_release(claimed, options.release).items():
                answered += await _answer(spark, handoff, items, replace(options, release=release), lease)
    return answered


async def _answer(
    spark: SparkSession, handoff: Handoff, items: list[Claimed], options: ScoringOptions, lease: Lease
) -> int:
    """Score, store and publish requests for one release; returns how many answers were kept."""
    try:
        release = options.store().open(options.release)
    except ReleaseError as error:
        return sum([await handoff.fail(item, str(error), COMPUTED_BY) for item in items])
    readable: list[tuple[Claimed, list[Text]]] = []
    kept = 0
    for item in items:
        try:
            request = item.work.request
            readable.append((item, release.manifest.reads.texts(request.texts, request.text_pairs)))
        except BadInput as error:
            kept += await handoff.fail(item, str(error), COMPUTED_BY)
    if readable:
        answers = await asyncio.to_thread(_score, spark, [texts for _, texts in readable], options)
        kept += await _store(handoff, [it for it, _ in readable], answers, release, lease)
    return kept


async def _store(
    handoff: Handoff, items: Sequence[Claimed], answers: Sequence[_Answers], release: Release, lease: Lease
) -> int:
    """All answers are stored before the first is acknowledged. What was lost meanwhile is for whoever has it now."""
    scored = [
        (item, _response(item, answer, release))
        for item, answer in zip(items, answers, strict=True)
        if item.entry not in lease.lost
    ]
    kept = sum(await handoff.score(scored, COMPUTED_BY))
    await handoff.publish([item for item, _ in scored])
    return kept


def _by_release(claimed: Sequence[Claimed], default: str) -> dict[str, list[Claimed]]:
    """Requests by the release they pin; the run's own where they pin none."""
    groups: dict[str, list[Claimed]] = {}
    for item in claimed:
        groups.setdefault(item.work.request.release or default, []).append(item)
    return groups


def _score(spark: SparkSession, requests: Sequence[Sequence[Text]], options: ScoringOptions) -> list[_Answers]:
    """Answers of each request's texts, in the order of both."""
    rows_of_texts = [
        {"item": number, "position": position, "text": first, "pair": second}
        for number, texts in enumerate(requests)
        for position, text in enumerate(texts)
        for first, second in [(text, None) if isinstance(text, str) else text]
    ]
    frame = spark.createDataFrame(pa.Table.from_pylist(rows_of_texts, schema=_TEXTS)).repartition(slots_of(spark))
    scored = frame.mapInArrow(partial(score_texts, options=options), _ANSWERS_DDL).toArrow().to_pylist()
    answers: list[_Answers] = [[] for _ in requests]
    for row in sorted(scored, key=itemgetter("item", "position")):
        answers[row["item"]].append(row)
    return answers


def score_texts(batches: Iterator[pa.RecordBatch], options: ScoringOptions) -> Iterator[pa.RecordBatch]:
    """mapInArrow: score deferred texts."""
    model = scoring.open_model(options, scoring.task_threads())
    for window in scoring.score_windows(batches, _texts, model, options):
        yield rows.answer_rows(window, model)


def _texts(batch: pa.RecordBatch) -> list[Text]:
    both = zip(batch.column("text").to_pylist(), batch.column("pair").to_pylist(), strict=True)
    return [text if pair is None else (text, pair) for text, pair in both]


def _response(item: Claimed, answers: _Answers, release: Release) -> ScoreResponse:
    wanted = release.output.kept(min(item.work.request.top_k or _DEFAULT_LABELS, TOP_K))
    results = [
        Result(
            labels=[Label(name=best["label"], score=best["score"]) for best in answer["top_k"][:wanted]],
            vector=answer["vector"],
            tokens=answer["tokens"],
            truncated=answer["truncated"],
        )
        for answer in answers
    ]
    return ScoreResponse(
        results=results,
        path=DEFERRED,
        release=release.id,
        precision=answers[0]["precision"],
        batch_size=max(answer["batch_rows"] for answer in answers),
        queue_us=max(0, int(time.time() * 1000) - item.work.accepted_at_ms) * 1000,
        request_id=item.request_id,
        reason="deferred: drained by the nightly run",
    )
