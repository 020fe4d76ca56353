"""The life of a request, on one page: pick a release → encode → look up → decide → lane → answer.

A request that the lane refuses, and that may wait, becomes deferred work and is answered with a ticket.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protos.scoring.v1.storage_pb2 import PublishedScore
from realtime_service import results
from realtime_service.deferral import Deferral
from realtime_service.errors import DeadlineExpired, Overloaded, ReplicaUnavailable, ScoringFailed
from realtime_service.models import Model, Models
from realtime_service.requests import ScoringRequest
from realtime_service.results import Answer
from realtime_service.routing.policy import Decision, Policy, RoutedRequest, decide
from realtime_service.routing.registry import Registry
from realtime_service.scheduling.device import Device
from realtime_service.telemetry import Outcome, Telemetry
from shared_model.clock import Clock
from shared_model.encoding import Encoder, Encoding, Text
from shared_model.errors import BadInput, UnknownRelease
from shared_model.types import ServingPath

#: What the metrics call each way to end without an answer.
_OUTCOMES: dict[type[BaseException], Outcome] = {
    UnknownRelease: Outcome.INVALID,
    BadInput: Outcome.INVALID,
    Overloaded: Outcome.REFUSED,
    ReplicaUnavailable: Outcome.REFUSED,
    DeadlineExpired: Outcome.EXPIRED,
    ScoringFailed: Outcome.FAILED,
    asyncio.CancelledError: Outcome.CANCELLED,
}

#: Texts up to this many characters are encoded on the event loop: it takes less than handing them to a thread.
_INLINE_CHARACTERS = 1_000


@dataclass(slots=True)
class _Life:
    """How far a request has come. Times are monotonic seconds; `deadline` is None when the caller gave none."""

    arrived: float
    deadline: float | None
    model: Model | None = None
    path: ServingPath | None = None


class Dispatcher:
    def __init__(
        self,
        models: Models,
        device: Device,
        registry: Registry,
        policy: Policy,
        deferral: Deferral,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._models = models
        self._device = device
        self._registry = registry
        self._policy = policy
        self._deferral = deferral
        self._telemetry = telemetry
        self._clock = clock

    async def score(self, request: ScoringRequest, caller: Callable[[], str], transport_left: float | None) -> Answer:
        """Answer one request, all of it by one release. Whose it is (`caller`) decides whether that is the canary.

        `transport_left`: seconds until the transport's own deadline, None without one.
        Raises: UnknownRelease, BadInput, Overloaded, DeadlineExpired, ScoringFailed.
        """
        arrived = self._clock.monotonic()
        # A deadline of the transport tightens when the answer is due; it says nothing about the path.
        patience = _nearer(request.timeout, transport_left)
        life = _Life(arrived, None if patience is None else arrived + patience)
        try:
            answer = await self._answer_or_defer(request, caller, life)
        except tuple(_OUTCOMES) as error:
            self._count_loss(life, _OUTCOMES[type(error)])
            raise
        answer.slack = self._count(answer, life)
        return answer

    async def _answer_or_defer(self, request: ScoringRequest, caller: Callable[[], str], life: _Life) -> Answer:
        try:
            return await self._answer(request, caller, life)
        except Overloaded as refusal:
            ticket = await self._deferral.accept_refused(request, self._left(life))
            if ticket is None:
                raise
            return results.deferred(ticket, refusal)

    async def _answer(self, request: ScoringRequest, caller: Callable[[], str], life: _Life) -> Answer:
        life.model = model = self._models.serving.pick(request.release, caller)
        # From here on it stays open until this request has ended, whatever is promoted meanwhile.
        with model.leases:
            encodings = await _encode(model.encoder, request)
            found = await self._look_up(model, encodings, request, self._left(life))
            decision = self._decide(request, found is not None)
            life.path = decision.path
            if found is not None:
                return results.published(model, found, decision, request.top_k)
            return await self._compute(model, decision, encodings, life, request.top_k)

    async def _compute(
        self, model: Model, decision: Decision, encodings: Sequence[Encoding], life: _Life, k: int
    ) -> Answer:
        rows = await self._device.compute(model, decision.path, encodings, life.arrived, life.deadline)
        return results.computed(model, encodings, rows, decision, k)

    async def score_deferred(self, request: ScoringRequest) -> Answer:
        """Answer a request that was submitted and has no deadline, behind everything else.

        Raises: UnknownRelease, BadInput, Overloaded, ScoringFailed.
        """
        model = self._models.serving.pick(request.release, caller=None)
        life = _Life(self._clock.monotonic(), None, model, ServingPath.DEFERRED)
        decision = Decision(ServingPath.DEFERRED, self._registry.snapshot.local, "submitted; taken by an idle lane")
        with model.leases:
            encodings = await _encode(model.encoder, request)
            answer = await self._compute(model, decision, encodings, life, request.top_k)
        self._note(model, answer, self._clock.monotonic() - life.arrived)
        return answer

    def check(self, request: ScoringRequest) -> None:
        """Raises: UnknownRelease, BadInput where a submitted request could not be answered by what is served now."""
        self._models.serving.pick(request.release, caller=None).encoder.reads.texts(request.texts, request.text_pairs)

    async def _look_up(
        self, model: Model, encodings: Sequence[Encoding], request: ScoringRequest, left: float | None
    ) -> list[PublishedScore] | None:
        if model.precomputed is None or (request.every_score and not results.is_whole(model.output)):
            return None
        slack = float("inf") if left is None else left
        return await model.precomputed.find([model.encoder.key(encoding) for encoding in encodings], slack)

    def _decide(self, request: ScoringRequest, precomputed: bool) -> Decision:
        routed = RoutedRequest(len(request.texts), request.priority, request.timeout, precomputed)
        decision = decide(routed, self._policy, self._registry.snapshot)
        self._telemetry.decided(decision.path, decision.reason)
        return decision

    def _left(self, life: _Life) -> float | None:
        """Seconds until the answer is due."""
        return None if life.deadline is None else life.deadline - self._clock.monotonic()

    def _count(self, answer: Answer, life: _Life) -> float | None:
        """Note an end with an answer; returns the slack."""
        if answer.ticket:
            self._telemetry.ended(None, Outcome.DEFERRED)
            return None
        now = self._clock.monotonic()
        lane = self._device.lanes.get(answer.path)
        due = life.deadline
        if due is None and lane and lane.target_seconds:
            due = life.arrived + lane.target_seconds
        seconds = now - life.arrived
        self._telemetry.answered(answer.path, seconds, answer.queued, answer.batch_rows, met=due is None or now <= due)
        if life.model:
            self._note(life.model, answer, seconds)
        return None if life.deadline is None else life.deadline - now

    def _note(self, model: Model, answer: Answer, seconds: float) -> None:
        if answer.batch_rows:
            model.statistics.add_computed(seconds, answer.queued, answer.computed, self._clock.wall())
        else:
            model.statistics.add_published(seconds, self._clock.wall())

    def _count_loss(self, life: _Life, outcome: Outcome) -> None:
        self._telemetry.ended(life.path, outcome)
        if life.model:
            life.model.statistics.failed.add(self._clock.monotonic() - life.arrived)


def _nearer(one: float | None, other: float | None) -> float | None:
    """The smaller of two times, where None is never."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


async def _encode(encoder: Encoder, request: ScoringRequest) -> list[Encoding]:
    """Raises: BadInput for pairs of texts where the model reads single ones, or the reverse."""
    texts: list[Text] = encoder.reads.texts(request.texts, request.text_pairs)
    if sum(map(len, request.texts + request.text_pairs)) <= _INLINE_CHARACTERS:
        return [encoder.encode(text) for text in texts]
    return await asyncio.to_thread(encoder.encode_many, texts)
