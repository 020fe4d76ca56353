"""Answer deferred requests in the nightly run: what no idle lane took by day, Spark takes by night.

claim → look up or score → commit → store results → publish, which acknowledges
"""

import asyncio
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import redis.asyncio
from pyspark.sql import SparkSession

from batch_job.deferred import answering
from batch_job.deferred.scores import DeferredScores, Row, row_id
from batch_job.progress import Progress, log
from batch_job.scoring.bisection import Failure
from batch_job.scoring.options import ScoringOptions
from batch_job.shards import schemas
from protos.scoring.v1.scoring_pb2 import DEFERRED, HeadResult, Label, Result, ScoreResponse
from shared_model import tracing
from shared_model.deferred import DEFAULTS, Claimed, DeferredQueue, Lease
from shared_model.deferred.owners import request_id_of
from shared_model.encoding import Text
from shared_model.errors import BadInput, ReleaseError
from shared_model.heads import Heads
from shared_model.releases.pointers import name_of
from shared_model.settings import DeferredSettings
from shared_model.types import TOP_K

COMPUTED_BY = "nightly"

#: Requests claimed at a time.
_CHUNK = 2_000
#: Of those that others had and did not finish: what fails among them is found sooner.
_CHUNK_AGAIN = 100
#: Labels of a request without a number of labels.
_DEFAULT_LABELS = 3


@dataclass(frozen=True)
class _Asked:
    """A request whose texts its release can read."""

    item: Claimed
    texts: Sequence[Text]


async def drain(
    spark: SparkSession,
    client: "redis.asyncio.Redis",
    options: ScoringOptions,
    scores: DeferredScores,
    limit: int,
    deferred: DeferredSettings = DEFAULTS,
    actives: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Claim, score, commit and publish up to `limit` requests; returns how many this run answered. `actives`: the
    release of each model, "" for requests that name none, which have the run's own release by default.

    Only the driver speaks to Redis and to the table: what Spark runs twice is kept once. Its claims count as no
    deliveries: if it dies, what it held is not suspected. What fails by itself in Spark becomes a dead letter.

    Raises: StoreUnavailable, or JobError where nothing can be scored or committed; what was claimed then returns to the
    others when its lease is over.
    """
    deferred_queue, consumer = DeferredQueue(client, deferred), f"nightly-{socket.gethostname()}-{os.getpid()}"
    taken = answered = 0
    waiting = min(limit, await deferred_queue.waiting())
    with Progress("answering", "deferred requests", waiting, lambda: answered):
        while taken < limit:
            claimed = await deferred_queue.claim(
                consumer, min(_CHUNK, limit - taken), again=_CHUNK_AGAIN, counted=False
            )
            if not claimed:
                break
            taken += len(claimed)
            untried: list[Claimed] = []
            # Spark scores in a thread, so that leases are renewed meanwhile.
            async with Lease(deferred_queue, consumer, claimed) as lease:
                for release, items in _by_release(claimed, {"": options.release, **actives}).items():
                    answer = _Answer(spark, deferred_queue, replace(options, release=release), scores, lease)
                    ended, left = await answer.run(items)
                    answered, untried = answered + ended, untried + left
            if untried:
                await deferred_queue.nack(consumer, untried)
                log(f"{len(untried):,} deferred requests were given back: too many others cannot be scored")
                break
    return answered


def _by_release(claimed: Sequence[Claimed], actives: Mapping[str, str]) -> dict[str, list[Claimed]]:
    """Requests by the release they pin; by that of their model where they pin none, "" for an unknown one."""
    groups: dict[str, list[Claimed]] = {}
    for item in claimed:
        request = item.work.request
        groups.setdefault(request.release or actives.get(request.model, ""), []).append(item)
    return groups


@dataclass(frozen=True)
class _Answer:
    """Answers the requests of a chunk that want one release. `began`: seconds since 1970."""

    spark: SparkSession
    deferred_queue: DeferredQueue
    options: ScoringOptions
    scores: DeferredScores
    lease: Lease
    began: float = field(default_factory=time.time)

    async def run(self, items: Sequence[Claimed]) -> tuple[int, list[Claimed]]:
        """How many have ended, and those that were not tried."""
        if not self.options.release:
            why = "model: {!r} has no active release"
            return sum([await self._fail(item, why.format(item.work.request.model)) for item in items]), []
        try:
            release = self.options.store().open(self.options.release)
        except ReleaseError as error:
            return sum([await self._fail(item, str(error)) for item in items]), []
        asked, failed = list[_Asked](), 0
        for item in items:
            try:
                request = item.work.request
                asked.append(_Asked(item, release.manifest.reads.texts(request.texts, request.text_pairs)))
            except BadInput as error:
                failed += await self._fail(item, str(error))
        if not asked:
            return failed, []
        texts = [text for it in asked for text in it.texts]
        found = await asyncio.to_thread(answering.scored, self.spark, texts, release, self.options, self.scores)
        ended, untried = await self._settle(asked, found, release.heads)
        return failed + ended, untried

    async def _fail(self, item: Claimed, why: str) -> bool:
        tracing.submitted(item.work.traceparent, self.began, why)
        return await self.deferred_queue.fail(item, why, COMPUTED_BY)

    async def _settle(
        self, asked: Sequence[_Asked], found: Mapping[Text, Row | Failure | None], heads: Heads
    ) -> tuple[int, list[Claimed]]:
        whole, untried, buried = list[tuple[_Asked, list[Row]]](), list[Claimed](), 0
        for it in asked:
            outcomes = [found[text] for text in it.texts]
            answers = [outcome for outcome in outcomes if isinstance(outcome, dict)]
            failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
            if it.item.entry in self.lease.lost:
                # Another consumer has it now.
                continue
            if failures:
                why = answering.reason(failures[0])
                tracing.submitted(it.item.work.traceparent, self.began, why)
                buried += await self.deferred_queue.dead_letter(it.item, why, COMPUTED_BY, answering.ATTEMPTS)
            elif len(answers) < len(outcomes):
                untried.append(it.item)
            else:
                whole.append((it, answers))
        return buried + await self._keep(whole, heads), untried

    async def _keep(self, whole: Sequence[tuple[_Asked, list[Row]]], heads: Heads) -> int:
        """Commit, then store all answers, and only then acknowledge the first."""
        named = [row for it, answers in whole for row in _named(it, answers)]
        if not named:
            return 0
        committed = iter(await asyncio.to_thread(self.scores.commit, named))
        scored = [(it.item, _response(it.item, [next(committed) for _ in it.texts], heads)) for it, _ in whole]
        kept = sum(await self.deferred_queue.store_results(scored, COMPUTED_BY))
        await self.deferred_queue.acknowledge([item for item, _ in scored])
        for item, _ in scored:
            tracing.submitted(item.work.traceparent, self.began)
        return kept


def _named(asked: _Asked, answers: Sequence[Row]) -> list[Row]:
    """The rows of a request, as they are committed."""
    count = len(asked.texts)
    return [
        {**answer, "id": row_id(asked.item.request_id, position, count), "text_hash": schemas.text_hash(text)}
        for position, (text, answer) in enumerate(zip(asked.texts, answers, strict=True))
    ]


def _result(answer: Row, heads: Heads, wanted: int) -> Result:
    """`wanted`: labels of each head whose labels are ranked."""
    own, further = heads.first.output.kept(wanted), dict(answer["heads"] or ())
    return Result(
        labels=_labels(answer, own),
        vector=answer["vector"],
        tokens=answer["tokens"],
        truncated=answer["truncated"],
        abstained=bool(answer["abstained"]),
        heads={
            spec.name: HeadResult(
                labels=_labels(further[spec.name], spec.output.kept(wanted)),
                vector=further[spec.name]["vector"],
                abstained=bool(further[spec.name]["abstained"]),
            )
            for spec in heads.further
        },
    )


def _labels(answer: Mapping[str, Any], kept: int) -> list[Label]:
    return [Label(name=best["label"], score=best["score"]) for best in answer["top_k"][:kept]]


def _response(item: Claimed, answers: Sequence[Row], heads: Heads) -> ScoreResponse:
    wanted = min(item.work.request.top_k or _DEFAULT_LABELS, TOP_K)
    results = [_result(answer, heads, wanted) for answer in answers]
    known = sum("batch_rows" not in answer for answer in answers)
    looked_up = f"; {known} of {len(answers)} texts had been scored before" if known else ""
    return ScoreResponse(
        results=results,
        path=DEFERRED,
        release=answers[0]["release"],
        model=name_of(answers[0]["release"]),
        precision=answers[0]["precision"],
        batch_size=max(answer.get("batch_rows", 0) for answer in answers),
        queue_us=max(0, int(time.time() * 1000) - item.work.accepted_at_ms) * 1000,
        request_id=request_id_of(item.request_id),
        reason=f"deferred: drained by the nightly run{looked_up}",
    )
