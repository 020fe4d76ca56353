"""The life of a request, on one page: quota → release → encode → look up → decide → lane, or another replica → answer.

A request that is refused, and that may wait, becomes deferred work and is answered with a ticket.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import grpc
import numpy as np

from protos.scoring.v1.storage_pb2 import PublishedScore
from realtime_service.cluster.forwarded_context import ForwardedContext
from realtime_service.cluster.forwarder import Forwarded, Forwarder
from realtime_service.cluster.membership import Membership
from realtime_service.errors import (
    DeadlineExpired,
    Overloaded,
    Relayed,
    ReplicaUnavailable,
    ScoringFailed,
)
from realtime_service.execution.devices import Devices
from realtime_service.metrics import Metrics, Outcome
from realtime_service.models.registry import Model, Models, unknown
from realtime_service.routing.policy import Decision, RoutedRequest, another, decide
from realtime_service.routing.quotas import Quotas
from realtime_service.routing.snapshot import ANY_RELEASE
from realtime_service.scheduling.scheduler import ADMITTED_SHARE
from realtime_service.serving import answer as results
from realtime_service.serving.answer import Answer
from realtime_service.serving.deferral import Deferral
from realtime_service.serving.request import ScoringRequest
from shared_model.clock import Clock
from shared_model.encoding import Encoder, Encoding, Text
from shared_model.errors import BadInput, UnknownRelease
from shared_model.types import Priority, ServingPath

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


#: A text of one token: no text takes less.
_SHORTEST = Encoding(np.ones(1, np.int32), truncated=False)


@dataclass(frozen=True, slots=True)
class CallContext:
    """What came around a request. `caller` tells who asks; `left`: seconds until the transport's own deadline, None
    without one; `hint`: the lane the caller names.

    `method` and `raw` are the call itself, unparsed, and `passed` the metadata that goes along when another replica is
    to answer it; `hop` is what another replica has decided, None for a call of a caller's.
    """

    caller: Callable[[], str]
    left: float | None
    method: str
    raw: bytes
    hint: ServingPath | None = None
    passed: tuple[tuple[str, str | bytes], ...] = ()
    hop: ForwardedContext | None = None


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
        device: Devices,
        registry: Membership,
        forwarder: Forwarder,
        quotas: Quotas,
        deferral: Deferral,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._models = models
        self._device = device
        self._registry = registry
        self._forwarder = forwarder
        self._quotas = quotas
        self._deferral = deferral
        self._metrics = metrics
        self._clock = clock

    async def score(self, request: ScoringRequest, call: CallContext) -> Answer | bytes:
        """Answer one request, all of it by one release. Bytes are another replica's answer, as it came.

        Raises: UnknownRelease, BadInput, Overloaded, DeadlineExpired, ScoringFailed, ReplicaUnavailable, Relayed.
        """
        arrived = self._clock.monotonic()
        # A deadline of the transport tightens when the answer is due; it says nothing about the path.
        patience = _nearer(request.timeout, call.left)
        life = _Life(arrived, None if patience is None else arrived + patience)
        try:
            self.charge(request, call)
            answer = await self._answer_or_defer(request, call, life)
        except tuple(_OUTCOMES) as error:
            self._count_loss(life, _OUTCOMES[type(error)])
            raise
        # What another replica has answered, or refused, that one has counted.
        if isinstance(answer, Answer):
            answer.slack = self._count(answer, life)
        return answer

    def charge(self, request: ScoringRequest, call: CallContext) -> None:
        """Count a request against its caller's quota; what came from another replica was counted there.

        Raises: Overloaded. Not even as deferred work is it taken then.
        """
        policy = self._registry.snapshot.policy
        if not call.hop and (policy.quota or policy.quotas):
            self._quotas.admit(call.caller(), len(request.texts), self._clock.monotonic())

    async def _answer_or_defer(self, request: ScoringRequest, call: CallContext, life: _Life) -> Answer | bytes:
        try:
            return await self._answer(request, call, life)
        except (Overloaded, Relayed) as refusal:
            # Whoever sent it on will defer it itself.
            if call.hop or (isinstance(refusal, Relayed) and refusal.code is not grpc.StatusCode.RESOURCE_EXHAUSTED):
                raise
            ticket = await self._deferral.accept_refused(request, self._left(life))
            if ticket is None:
                raise
            return results.deferred(ticket, refusal)

    async def _answer(self, request: ScoringRequest, call: CallContext, life: _Life) -> Answer | bytes:
        release = self._release(request, call)
        life.model = model = self._models.serving.models.get(release)
        if model is None:
            if call.hop:
                raise ReplicaUnavailable("this replica no longer has the release it was asked for; ask another")
            routed = self._routed(request, call, life, release, {})
            return await self._forward(call, life, routed, self._decide(routed, life))
        self._refuse_hopeless(request, call, life, model)
        # From here on it stays open until this request has ended, whatever is promoted meanwhile.
        with model.leases:
            encodings = await _encode(model.encoder, request)
            found = await self._look_up(model, encodings, request, call, life)
            here = self._here(model, encodings, request)
            routed = self._routed(request, call, life, release, here, found is not None)
            decision = self._decided(call.hop, life) if call.hop and found is None else self._decide(routed, life)
            if found is not None:
                return results.published(model, found, decision, request.top_k)
            if decision.replica == self._registry.snapshot.local:
                try:
                    return await self._compute(model, decision, encodings, life, request)
                except Overloaded:
                    other = None if call.hop else self._another(decision, routed)
                    if other is None:
                        raise
                    decision = other
        return await self._forward(call, life, routed, decision)

    async def _compute(
        self, model: Model, decision: Decision, encodings: Sequence[Encoding], life: _Life, request: ScoringRequest
    ) -> Answer:
        real_time = request.priority is Priority.REAL_TIME
        rows = await self._device.compute(model, decision.path, encodings, life.arrived, life.deadline, real_time)
        return results.computed(model, encodings, rows, decision, request.top_k)

    async def _forward(self, call: CallContext, life: _Life, routed: RoutedRequest, decision: Decision) -> bytes:
        looked_up = life.model is not None and not call.hint
        sent = Forwarded(call.method, call.raw, life.deadline, call.passed, looked_up)
        return await self._forwarder.forward(sent, routed, decision)

    async def score_deferred(self, request: ScoringRequest) -> Answer:
        """Answer a request that was submitted and has no deadline, behind everything else.

        Raises: UnknownRelease, BadInput, Overloaded, ScoringFailed.
        """
        model = self._models.serving.pick(request.release, caller=None)
        life = _Life(self._clock.monotonic(), None, model, ServingPath.DEFERRED)
        decision = Decision(ServingPath.DEFERRED, self._registry.snapshot.local, "submitted; taken by an idle lane")
        with model.leases:
            encodings = await _encode(model.encoder, request)
            answer = await self._compute(model, decision, encodings, life, request)
        self._note(model, answer, self._clock.monotonic() - life.arrived)
        return answer

    def check(self, request: ScoringRequest) -> None:
        """Raises: UnknownRelease, BadInput where a submitted request could not be answered by what is served now, as
        far as a process that may have loaded nothing can know."""
        serving, snapshot = self._models.serving, self._registry.snapshot
        chosen = serving.choose(request.release, caller=None)
        if model := serving.models.get(chosen):
            model.encoder.reads.texts(request.texts, request.text_pairs)
        elif request.release and not snapshot.serves(chosen):
            raise unknown(request.release, serving.active)

    async def _look_up(
        self, model: Model, encodings: Sequence[Encoding], request: ScoringRequest, call: CallContext, life: _Life
    ) -> list[PublishedScore] | None:
        """The published scores of all texts; None where one is missing, or a lane is to answer anyway."""
        if model.precomputed is None or call.hint or (call.hop and call.hop.looked_up):
            return None
        if request.every_score and not results.is_whole(model.output):
            return None
        left = self._left(life)
        slack = float("inf") if left is None else left
        return await model.precomputed.find([model.encoder.key(encoding) for encoding in encodings], slack)

    def _release(self, request: ScoringRequest, call: CallContext) -> str:
        """Which release answers, here or elsewhere. Raises: UnknownRelease."""
        serving, snapshot = self._models.serving, self._registry.snapshot
        if call.hop and call.hop.release in serving.models:
            return call.hop.release
        chosen = serving.choose(request.release, call.caller)
        if chosen in serving.models or snapshot.serves(chosen):
            return chosen
        if request.release:
            raise unknown(request.release, serving.active)
        return ANY_RELEASE

    def _refuse_hopeless(self, request: ScoringRequest, call: CallContext, life: _Life, model: Model) -> None:
        """Refuse what would be late even if its texts were the shortest, before work is spent on them: a device that
        has several times as much to do as it can would else be kept from it by refusing.

        Raises: Overloaded, ReplicaUnavailable.
        """
        if life.deadline is None or call.hop or not self._device.busy:
            return
        if model.precomputed and model.precomputed.epoch:
            return
        here = self._here(model, [_SHORTEST] * len(request.texts), request)
        snapshot = self._registry.snapshot
        decide(self._routed(request, call, life, model.release, here), snapshot.policy, snapshot, _draw())

    def _here(self, model: Model, encodings: Sequence[Encoding], request: ScoringRequest) -> "_Here":
        real_time = request.priority is Priority.REAL_TIME
        return _Here(self._device, model, encodings, real_time, self._registry.snapshot.lanes)

    def _routed(
        self,
        request: ScoringRequest,
        call: CallContext,
        life: _Life,
        release: str,
        here: Mapping[ServingPath, float],
        precomputed: bool = False,
    ) -> RoutedRequest:
        patience = None
        if life.deadline is not None:
            latest = life.arrived + ADMITTED_SHARE * (life.deadline - life.arrived)
            patience = latest - self._clock.monotonic()
        return RoutedRequest(
            len(request.texts), request.priority, request.timeout, patience, release, here, call.hint, precomputed
        )

    def _decided(self, hop: ForwardedContext, life: _Life) -> Decision:
        """What another replica has decided: this one only carries it out."""
        life.path = hop.path
        return Decision(hop.path, self._registry.snapshot.local, hop.reason)

    def _decide(self, routed: RoutedRequest, life: _Life) -> Decision:
        snapshot = self._registry.snapshot
        decision = decide(routed, snapshot.policy, snapshot, _draw())
        life.path = decision.path
        self._metrics.decided(decision.path, decision.reason)
        return decision

    def _another(self, decision: Decision, routed: RoutedRequest) -> Decision | None:
        """Another replica for what this one has just refused."""
        return another(decision, routed, self._registry.snapshot, {decision.replica}, _draw())

    def _left(self, life: _Life) -> float | None:
        """Seconds until the answer is due."""
        return None if life.deadline is None else life.deadline - self._clock.monotonic()

    def _count(self, answer: Answer, life: _Life) -> float | None:
        """Note an end with an answer; returns the slack."""
        if answer.ticket:
            self._metrics.ended(None, Outcome.DEFERRED)
            return None
        now = self._clock.monotonic()
        target, due = self._registry.snapshot.policy.targets.get(answer.path), life.deadline
        if due is None and target:
            due = life.arrived + target
        seconds = now - life.arrived
        self._metrics.answered(answer.path, seconds, answer.queued, answer.batch_rows, met=due is None or now <= due)
        if life.model:
            self._note(life.model, answer, seconds)
        return None if life.deadline is None else life.deadline - now

    def _note(self, model: Model, answer: Answer, seconds: float) -> None:
        if answer.batch_rows:
            model.statistics.add_computed(seconds, answer.queued, answer.computed, self._clock.wall())
        else:
            model.statistics.add_published(seconds, self._clock.wall())

    def _count_loss(self, life: _Life, outcome: Outcome) -> None:
        self._metrics.ended(life.path, outcome)
        if life.model:
            life.model.statistics.failed.add(self._clock.monotonic() - life.arrived)


class _Here(Mapping[ServingPath, float]):
    """Seconds until this replica would answer a request, by lane; worked out for lanes that are asked for."""

    def __init__(
        self,
        device: Devices,
        model: Model,
        encodings: Sequence[Encoding],
        real_time: bool,
        lanes: Sequence[ServingPath],
    ) -> None:
        self._device = device
        self._model = model
        self._encodings = encodings
        self._real_time = real_time
        self._lanes = lanes

    def __getitem__(self, path: ServingPath) -> float:
        if path not in self._lanes:
            raise KeyError(path)
        finish = self._device.finish_of(self._model, path, self._encodings, self._real_time)
        if finish is None:
            raise KeyError(path)
        return finish

    def __iter__(self) -> Iterator[ServingPath]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)


def _draw() -> float:
    """Uniform in [0, 1), for the choice among replicas."""
    return random.random()  # noqa: S311 - no secret


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
