"""The life of a request, on one page: pick a release → encode → look up → decide → lane → answer."""

import asyncio
from collections.abc import Sequence

from protos.scoring.v1.storage_pb2 import PublishedScore
from realtime_service import results
from realtime_service.errors import DeadlineExpired, Overloaded, ScoringFailed
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
    DeadlineExpired: Outcome.EXPIRED,
    ScoringFailed: Outcome.FAILED,
    asyncio.CancelledError: Outcome.CANCELLED,
}

#: Texts up to this many characters are encoded on the event loop: it takes less than handing them to a thread.
_INLINE_CHARACTERS = 1_000


class Dispatcher:
    def __init__(
        self,
        models: Models,
        device: Device,
        registry: Registry,
        policy: Policy,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._models = models
        self._device = device
        self._registry = registry
        self._policy = policy
        self._telemetry = telemetry
        self._clock = clock

    async def score(self, request: ScoringRequest, caller: str, transport_left: float | None) -> Answer:
        """Answer one request, all of it by one release. `caller` decides whether that is the canary.

        `transport_left`: seconds until the transport's own deadline, None without one.
        Raises: UnknownRelease, BadInput, Overloaded, DeadlineExpired, ScoringFailed.
        """
        arrived = self._clock.monotonic()
        # A deadline of the transport tightens when the answer is due; it says nothing about the path.
        patience = min((t for t in (request.timeout, transport_left) if t is not None), default=None)
        deadline = None if patience is None else arrived + patience
        path = None
        try:
            model = self._models.serving.pick(request.release, caller)
            # From here on it stays open until this request has ended, whatever is promoted meanwhile.
            with model.leases.take():
                encodings = await _encode(model.encoder, request)
                found = await self._look_up(model, encodings, deadline)
                decision = self._decide(request, found is not None)
                path = decision.path
                if found is not None:
                    answer = results.published(model, found, decision, request.top_k)
                else:
                    rows = await self._device.compute(model, path, encodings, arrived, deadline)
                    answer = results.computed(model, encodings, rows, decision, request.top_k)
        except tuple(_OUTCOMES) as error:
            self._telemetry.ended(path, _OUTCOMES[type(error)])
            raise
        self._count(answer, arrived, deadline)
        return answer

    async def score_deferred(self, request: ScoringRequest) -> Answer:
        """Answer a request that was submitted and has no deadline, behind everything else.

        Raises: UnknownRelease, BadInput, Overloaded, ScoringFailed.
        """
        model = self._models.serving.pick(request.release, caller=None)
        with model.leases.take():
            encodings = await _encode(model.encoder, request)
            rows = await self._device.compute(model, ServingPath.DEFERRED, encodings, self._clock.monotonic(), None)
            decision = Decision(ServingPath.DEFERRED, self._registry.snapshot.local, "submitted; taken by an idle lane")
            return results.computed(model, encodings, rows, decision, request.top_k)

    def check(self, request: ScoringRequest) -> None:
        """Raises: UnknownRelease, BadInput where a submitted request could not be answered by what is served now."""
        self._models.serving.pick(request.release, caller=None).encoder.reads.texts(request.texts, request.text_pairs)

    async def _look_up(
        self, model: Model, encodings: Sequence[Encoding], deadline: float | None
    ) -> list[PublishedScore] | None:
        if model.precomputed is None:
            return None
        slack = float("inf") if deadline is None else deadline - self._clock.monotonic()
        return await model.precomputed.find([model.encoder.key(encoding) for encoding in encodings], slack)

    def _decide(self, request: ScoringRequest, precomputed: bool) -> Decision:
        routed = RoutedRequest(len(request.texts), request.priority, request.timeout, precomputed)
        decision = decide(routed, self._policy, self._registry.snapshot)
        self._telemetry.decided(decision.path, decision.reason)
        return decision

    def _count(self, answer: Answer, arrived: float, deadline: float | None) -> None:
        now = self._clock.monotonic()
        lane = self._device.lanes.get(answer.path)
        due = deadline
        if due is None and lane and lane.target_seconds:
            due = arrived + lane.target_seconds
        self._telemetry.answered(
            answer.path, now - arrived, answer.queued, answer.batch_rows, met=due is None or now <= due
        )


async def _encode(encoder: Encoder, request: ScoringRequest) -> list[Encoding]:
    """Raises: BadInput for pairs of texts where the model reads single ones, or the reverse."""
    texts: list[Text] = encoder.reads.texts(request.texts, request.text_pairs)
    if sum(map(len, request.texts + request.text_pairs)) <= _INLINE_CHARACTERS:
        return [encoder.encode(text) for text in texts]
    return await asyncio.to_thread(encoder.encode_many, texts)
