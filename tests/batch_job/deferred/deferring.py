"""Deferred requests for tests of the drain, and what stands for Spark where scoring is not the subject."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

import redis.asyncio
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from batch_job.deferred.scores import DeferredScores, Row
from batch_job.scoring.options import ScoringOptions
from batch_job.shards import schemas
from batch_job.tables import table
from protos.scoring.v1.scoring_pb2 import ScoreRequest
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model.deferred import DEFAULTS, DeadLetter, DeadLetters, DeferredQueue, Item
from shared_model.deferred.scripts import GROUP
from shared_model.heads import Heads
from shared_model.redis_store import keys
from shared_model.releases.store import Release
from tests.shared_model import further_heads

Done = TypeVar("Done")


async def submit(
    client: "redis.asyncio.Redis",
    *texts: str,
    top_k: int = 0,
    release: str = "",
    model: str = "",
    traceparent: str = "",
) -> str:
    request_id = uuid.uuid4().hex
    request = ScoreRequest(texts=texts, top_k=top_k, release=release, request_id=request_id, model=model)
    work = DeferredWork(request=request, accepted_at_ms=1, traceparent=traceparent)
    await DeferredQueue(client).submit(request_id, work)
    return request_id


def submit_to(url: str, text: str) -> str:
    """`submit` for tests that are not asynchronous."""

    async def connected() -> str:
        async with redis.asyncio.Redis.from_url(url) as client:
            return await submit(client, text)

    return in_a_thread(connected())


def result(url: str, request_id: str) -> Item | None:
    """A request's state and answer, for tests that are not asynchronous."""

    async def run() -> Item | None:
        async with redis.asyncio.Redis.from_url(url) as client:
            return await DeferredQueue(client).get(request_id)

    return in_a_thread(run())


def in_a_thread(work: Coroutine[Any, Any, Done]) -> Done:
    """A browser may have an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def letters(client: "redis.asyncio.Redis") -> list[DeadLetter]:
    return [letter async for letter in DeadLetters(client, DEFAULTS).all()]


async def forget_leases(client: "redis.asyncio.Redis") -> None:
    """Time passes, and the holder of requests renews nothing."""
    held = await client.xpending_range(keys.deferred_stream(), GROUP, "-", "+", 100)
    entries = [row["message_id"] for row in held]
    await client.xclaim(keys.deferred_stream(), GROUP, "dead", 0, entries, idle=60_000, justid=True)


def committed(scores: DeferredScores) -> list[Row]:
    """The day's deferred rows."""
    delta = DeltaTable(str(scores.folder))
    batches = table.read_files(delta, scores.ds, schemas.SCORES.names, schemas.DEFERRED)
    return [row for batch in batches for row in batch.to_pylist()]


def row(text: str, release: str = "r-0123456789ab", score: float = 0.5, heads: Heads | None = None) -> Row:
    """A row of the scores table, with a score to know it by."""
    return {
        "id": text,
        "text_hash": schemas.text_hash(text),
        "label": "card_arrival",
        "score": score,
        "release": release,
        "precision": "bf16",
        "scored_at": datetime(2026, 1, 15, 2, tzinfo=UTC),
        "encoding_key": b"",
        "tokens": 3,
        "truncated": False,
        "top_k": [{"label": "card_arrival", "score": score}],
        "vector": None,
        "abstained": None,
        "heads": further_heads.columns(heads) if heads else None,
    }


class Spark:
    """Stands for scoring in Spark: each text gets `gives`, after what a test does meanwhile, or fails. `ran`: texts."""

    def __init__(self, release: Release) -> None:
        self._release = release
        self._encoder = release.encoder()
        self.meanwhile: Callable[[], None] = lambda: None
        self.gives = 0.5
        self.ran: list[str] = []

    def score(self, spark: SparkSession, texts: Sequence[str], options: ScoringOptions) -> list[Row]:
        self.ran += texts
        self.meanwhile()
        return [{**self.row(text), "batch_rows": len(texts)} for text in texts]

    def row(self, text: str) -> Row:
        key = self._encoder.key(self._encoder.encode(text))
        return {**row(text, self._release.id, self.gives, self._release.heads), "encoding_key": key}
