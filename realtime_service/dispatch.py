"""The life of a request, on one page: encode → look up → decide → lane → answer."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from protos.scoring.v1.storage_pb2 import PublishedScore
from realtime_service.errors import DeadlineExpired, Overloaded, ScoringFailed
from realtime_service.precomputed import PrecomputedScores
from realtime_service.requests import ScoringRequest
from realtime_service.routing.policy import Decision, Policy, RoutedRequest, decide
from realtime_service.routing.registry import Registry
from realtime_service.scheduling.device import Computed, Device
from realtime_service.telemetry import Outcome, Telemetry
from shared_model.clock import Clock
from shared_model.encoding import Encoder, Encoding
from shared_model.engine import top_k
from shared_model.errors import UnknownRelease
from shared_model.types import TOP_K, Label, Score, ServingPath

#: What the metrics call each way to end without an answer.
_OUTCOMES: dict[type[BaseException], Outcome] = {
    UnknownRelease: Outcome.INVALID,
    Overloaded: Outcome.REFUSED,
    DeadlineExpired: Outcome.EXPIRED,
    ScoringFailed: Outcome.FAILED,
    asyncio.CancelledError: Outcome.CANCELLED,
}

#: Texts up to this many characters are encoded on the event loop: it takes less than handing them to a thread.
_INLINE_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class Answer:
    """Times in seconds. `batch_rows` is 0 when no device was used."""

    scores: tuple[Score, ...]
    path: ServingPath
    release: str
    precision: str
    batch_rows: int
    queued: float
    computed: float
    reason: str


@dataclass(frozen=True, slots=True)
class Model:
    """What a release means to a request, apart from its engines."""

    encoder: Encoder
    labels: tuple[str, ...]


class Dispatcher:
    def __init__(
        self,
        model: Model,
        device: Device,
        registry: Registry,
        precomputed: PrecomputedScores | None,
        policy: Policy,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._encoder = model.encoder
        self._labels = model.labels
        self._device = device
        self._registry = registry
        self._precomputed = precomputed
        self._policy = policy
        self._telemetry = telemetry
        self._clock = clock

    async def score(self, request: ScoringRequest, transport_left: float | None) -> Answer:
        """Answer one request. `transport_left`: seconds until the transport's own deadline, None without one.

        Raises: UnknownRelease, Overloaded, DeadlineExpired, ScoringFailed.
        """
        arrived = self._clock.monotonic()
        # A deadline of the transport tightens when the answer is due; it says nothing about the path.
        patience = min((t for t in (request.timeout, transport_left) if t is not None), default=None)
        deadline = None if patience is None else arrived + patience
        path = None
        try:
            encodings = await self._encode(request.texts)
            found = await self._look_up(encodings, deadline)
            decision = self._decide(request, found is not None)
            path = decision.path
            if found is not None:
                answer = self._published(found, decision, request.top_k)
            else:
                computed = await self._device.compute(path, encodings, arrived, deadline)
                answer = self._computed(encodings, computed, decision, request.top_k)
        except tuple(_OUTCOMES) as error:
            self._telemetry.ended(path, _OUTCOMES[type(error)])
            raise
        self._count(answer, arrived, deadline)
        return answer

    async def score_deferred(self, request: ScoringRequest) -> Answer:
        """Answer a request that was submitted and has no deadline, behind everything else.

        Raises: UnknownRelease, Overloaded, ScoringFailed.
        """
        serving = self._registry.snapshot.release
        if request.release and request.release != serving:
            raise UnknownRelease(f"release: {request.release!r} is not served any more; this is {serving}")
        encodings = await self._encode(request.texts)
        computed = await self._device.compute(ServingPath.DEFERRED, encodings, self._clock.monotonic(), None)
        decision = Decision(ServingPath.DEFERRED, self._registry.snapshot.local, "submitted; taken by an idle lane")
        return self._computed(encodings, computed, decision, request.top_k)

    async def _encode(self, texts: tuple[str, ...]) -> list[Encoding]:
        if sum(map(len, texts)) <= _INLINE_CHARACTERS:
            return [self._encoder.encode(text) for text in texts]
        return await asyncio.to_thread(self._encoder.encode_many, texts)

    async def _look_up(self, encodings: Sequence[Encoding], deadline: float | None) -> list[PublishedScore] | None:
        if self._precomputed is None:
            return None
        slack = float("inf") if deadline is None else deadline - self._clock.monotonic()
        return await self._precomputed.find([self._encoder.key(encoding) for encoding in encodings], slack)

    def _decide(self, request: ScoringRequest, precomputed: bool) -> Decision:
        routed = RoutedRequest(len(request.texts), request.priority, request.timeout, request.release, precomputed)
        decision = decide(routed, self._policy, self._registry.snapshot)
        self._telemetry.decided(decision.path, decision.reason)
        return decision

    def _published(self, found: Sequence[PublishedScore], decision: Decision, k: int) -> Answer:
        precision = self._precomputed.precision if self._precomputed else ""
        scores = tuple(self._labelled(s.labels[:k], s.probabilities[:k], s.tokens, s.truncated) for s in found)
        return Answer(scores, decision.path, self._registry.snapshot.release, precision, 0, 0.0, 0.0, decision.reason)

    def _computed(self, encodings: Sequence[Encoding], computed: list[Computed], decision: Decision, k: int) -> Answer:
        indices, probabilities = top_k(np.stack([c.scores for c in computed]), min(k, TOP_K))
        scores = tuple(
            self._labelled(best.tolist(), odds.tolist(), encoding.tokens, encoding.truncated)
            for best, odds, encoding in zip(indices, probabilities, encodings, strict=True)
        )
        # Texts of one request may run in several batches; the times told are those of the last.
        last = max(computed, key=lambda c: c.queued)
        return Answer(
            scores=scores,
            path=decision.path,
            release=self._registry.snapshot.release,
            precision=last.precision,
            batch_rows=last.batch_rows,
            queued=last.queued,
            computed=last.computed,
            reason=decision.reason,
        )

    def _labelled(self, best: Sequence[int], odds: Sequence[float], tokens: int, truncated: bool) -> Score:
        labels = tuple(Label(self._labels[index], value) for index, value in zip(best, odds, strict=True))
        return Score(labels, tokens, truncated)

    def _count(self, answer: Answer, arrived: float, deadline: float | None) -> None:
        now = self._clock.monotonic()
        lane = self._device.lanes.get(answer.path)
        due = deadline
        if due is None and lane and lane.target_seconds:
            due = arrived + lane.target_seconds
        self._telemetry.answered(
            answer.path, now - arrived, answer.queued, answer.batch_rows, met=due is None or now <= due
        )
