"""Makes the answer to a request from the scores of a device or of a published epoch, for every kind of output."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protos.scoring.v1.storage_pb2 import PublishedScore
from realtime_service.errors import Overloaded, Relayed
from realtime_service.execution.device import Computed
from realtime_service.models.registry import Model
from realtime_service.models.result_encoder import TextScores
from realtime_service.routing.policy import Decision
from realtime_service.serving.deferral import Ticket
from realtime_service.settings import Lane
from shared_model.encoding import Encoding
from shared_model.heads import Heads
from shared_model.types import TOP_K, ServingPath


@dataclass(slots=True)
class Answer:
    """Times in seconds. `batch_rows` is 0 when no device was used.

    `every`: all numbers of the release's heads, (texts, width of all); None where only the best few are known.
    `slack`: the deadline less the finish, set when the request has ended, None without a deadline. `ticket`: what a
    deferred answer is asked for by. `model`: the name of the model.
    """

    scores: tuple[TextScores, ...]
    path: ServingPath
    release: str
    precision: str
    batch_rows: int
    queued: float
    computed: float
    reason: str
    every: NDArray[np.float32] | None = None
    slack: float | None = None
    ticket: Ticket | None = None
    model: str = ""


def deferred(ticket: Ticket, refusal: Overloaded | Relayed) -> Answer:
    """No scores yet, and which release will give them is not known."""
    reason = f"taken as deferred work: {refusal.why if isinstance(refusal, Overloaded) else refusal}"
    return Answer((), ServingPath.DEFERRED, "", "", 0, 0.0, 0.0, reason, ticket=ticket)


def published(model: Model, found: Sequence[PublishedScore], decision: Decision, k: int) -> Answer:
    """`k`: labels wanted of each text, where the output is labels."""
    precision = model.precomputed.precision if model.precomputed else ""
    scores = tuple(model.result_encoder.published(score, k) for score in found)
    every = np.zeros((len(found), model.heads.width), np.float32) if is_whole(model.heads) else None
    if every is not None:
        for row, text in zip(every, scores, strict=True):
            for spec, part, kept in zip(model.heads.specs, model.heads.split(row), text.heads, strict=True):
                part[list(kept.labels) if spec.output.names else slice(None)] = kept.scores
    return Answer(scores, decision.path, model.release, precision, 0, 0.0, 0.0, decision.reason, every)


def disguise(answer: Answer, path: ServingPath, reason: str, lane: Lane | None, seconds: float) -> None:
    """Make a published answer look like a computed one of this lane. `lane`: None if it is not served here; `seconds`:
    that the answer took."""
    answer.path, answer.reason, answer.batch_rows, answer.computed = path, reason, 1, seconds
    if lane:
        answer.precision, answer.batch_rows = lane.precision, min(lane.max_rows, len(answer.scores))


def computed(
    model: Model, encodings: Sequence[Encoding], rows: Sequence[Computed], decision: Decision, k: int
) -> Answer:
    """`k`: labels wanted of each text, where the output is labels."""
    every = np.array([row.scores for row in rows])
    k = min(k, TOP_K)
    parts = zip(model.heads.specs, model.heads.split(every), strict=True)
    by_head = [spec.output.answers(part, k) for spec, part in parts]
    scores = tuple(
        TextScores(model.result_encoder, heads, encoding.tokens, encoding.truncated, k)
        for encoding, heads in zip(encodings, zip(*by_head, strict=True), strict=True)
    )
    # Texts of one request may run in several batches; the times told are those of the last.
    last = max(rows, key=lambda row: row.queued)
    return Answer(
        scores=scores,
        path=decision.path,
        release=model.release,
        precision=last.precision,
        batch_rows=last.batch_rows,
        queued=last.queued,
        computed=last.computed,
        reason=decision.reason,
        every=every,
    )


def is_whole(heads: Heads) -> bool:
    """Whether a published score holds all of a text's numbers, of every head."""
    return all(spec.output.kept(TOP_K) == spec.output.width for spec in heads.specs)
