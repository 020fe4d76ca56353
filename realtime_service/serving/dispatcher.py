"""The life of a request, on one page: quota → release → encode → look up → decide → run here or forward → answer.

A request that is refused, and that may wait, becomes deferred work and is answered with a ticket.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence

import grpc

from protos.scoring.v1.storage_pb2 import PublishedScore
from realtime_service import identity
from realtime_service.cluster.forwarder import Forwarded, Forwarder
from realtime_service.cluster.membership import Membership
from realtime_service.errors import (
    DeadlineExpired,
    Overloaded,
    PermissionDenied,
    Relayed,
    ReplicaUnavailable,
)
from realtime_service.execution.devices import Devices
from realtime_service.identity import Identity, of_model
from realtime_service.models.registry import Model, Models, unknown
from realtime_service.routing.policy import Decision, RoutedRequest, another, decide, own_lane
from realtime_service.routing.quotas import Quotas, texts_charged
from realtime_service.routing.snapshot import any_release
from realtime_service.scheduling.scheduler import latest_finish
from realtime_service.serving import answer, chunked_encoding, release_choice
from realtime_service.serving.accounting import Accounting
from realtime_service.serving.answer import Answer
from realtime_service.serving.deferral import Deferral
from realtime_service.serving.early_shedding import EarlyShedding
from realtime_service.serving.finish_times import FinishTimes
from realtime_service.serving.request import IDENTITY, CallContext, RequestContext, ScoringRequest
from realtime_service.telemetry.metrics import Metrics
from realtime_service.telemetry.scope import name_request
from shared_model.clock import Clock
from shared_model.encoding import Encoding
from shared_model.types import ServingPath

#: Submitted work has no call any more.
_NO_CALL = CallContext(Identity("service", "service"), None, "", b"")


class Dispatcher:
    def __init__(
        self,
        models: Models,
        device: Devices,
        membership: Membership,
        forwarder: Forwarder,
        quotas: Quotas,
        deferral: Deferral,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._models = models
        self._device = device
        self._membership = membership
        self._forwarder = forwarder
        self._quotas = quotas
        self._deferral = deferral
        self._metrics = metrics
        self._accounting = Accounting(metrics, clock)
        self._clock = clock
        self.early_shedding = EarlyShedding(models, device, membership, quotas, metrics, clock)

    async def score(self, request: ScoringRequest, call: CallContext) -> Answer | bytes:
        """Answer one request, all of it by one release. Bytes are another replica's answer, as it came.

        Raises: UnknownRelease, BadInput, PermissionDenied, Overloaded, DeadlineExpired, ScoringFailed,
        ReplicaUnavailable, Relayed.
        """
        name_request(request.request_id)
        now = self._clock.monotonic()
        arrived = now if call.arrived is None else call.arrived
        # A deadline of the transport tightens when the answer is due; the path depends on the request's own field only.
        bounds = ((arrived, request.timeout), (now, call.left))
        deadline = min((since + left for since, left in bounds if left is not None), default=None)
        context = RequestContext(request, call, self._membership.snapshot, arrived, deadline)
        try:
            self.charge(request, call)
            answered = await self._answer_or_defer(context)
        except (Exception, asyncio.CancelledError) as error:
            self._accounting.lost(context, error)
            raise
        # An answer or a refusal of another replica is counted there.
        if isinstance(answered, Answer):
            answered.model = context.name
            answered.slack = self._accounting.answered(context, answered)
            if answered.path is ServingPath.PRECOMPUTED and not call.caller.sees_precomputed:
                self._disguise(context, answered)
        return answered

    @property
    def served_models(self) -> frozenset[str]:
        """The models that this process has or loads."""
        return frozenset({self._models.serving.default_name, *self._models.loads})

    async def score_deferred(self, request: ScoringRequest) -> Answer:
        """Answer a request that was submitted and has no deadline, behind everything else.

        Raises: UnknownRelease, BadInput, Overloaded, ScoringFailed; ReplicaUnavailable, ModelLoading where another
        process, or this one later, may have the model.
        """
        arrived, snapshot, serving = self._clock.monotonic(), self._membership.snapshot, self._models.serving
        if request.model and request.model not in serving.by_name:
            # It was known when the request was accepted.
            raise ReplicaUnavailable(f"model {request.model} is not known here")
        if other := serving.other(request.model):
            self._models.used[other] = arrived
        if not request.release and serving.choose("", None, request.model) not in serving.models:
            raise release_choice.unloaded(self._models, request.model)
        model = serving.pick(request.release, caller=None, name=request.model)
        context = RequestContext(request, _NO_CALL, snapshot, arrived, None, model)
        context.name_model(serving)
        decision = Decision(ServingPath.DEFERRED, snapshot.local, "submitted; taken by an idle lane")
        with model.leases:
            encodings = await self._encode(context, model)
            scored = await self._run(context, model, encodings, decision, finish_in=None)
        scored.model = context.name
        self._accounting.scored(model, scored, self._clock.monotonic() - arrived)
        return scored

    def check(self, request: ScoringRequest, call: CallContext) -> None:
        """Raises: UnknownRelease, BadInput where a submitted request could not be answered by the releases served now,
        as far as a process that may have loaded none can know; PermissionDenied."""
        name_request(request.request_id)
        if not call.caller.may_use(ServingPath.DEFERRED):
            raise PermissionDenied("the token does not permit deferred work")
        serving, snapshot = self._models.serving, self._membership.snapshot
        chosen = serving.choose(request.release, caller=None, name=request.model)
        release_choice.check_permitted(call.caller, chosen)
        if model := serving.models.get(chosen):
            model.encoder.reads.texts(request.texts, request.text_pairs)
        elif request.release and not snapshot.serves(chosen):
            raise unknown(request.release, serving.active)

    def charge(self, request: ScoringRequest, call: CallContext) -> None:
        """As `charge_texts`. The request is not taken as deferred work where it is refused."""
        self.charge_texts(request.model, texts_charged(request.texts, request.text_pairs), call)

    def charge_texts(self, model: str, texts: int, call: CallContext) -> None:
        """Count texts against their caller's quota; a forwarded request was counted where it came in.

        Raises: Overloaded.
        """
        policy = self._membership.snapshot.policy
        if not call.forwarded and (policy.quota or policy.quotas):
            key = of_model(call.caller.quota_key, self._models.serving.other(model))
            self._quotas.admit(key, texts, self._clock.monotonic())

    async def _answer_or_defer(self, context: RequestContext) -> Answer | bytes:
        try:
            answered = await self._answer(context)
        except (Overloaded, Relayed) as refusal:
            self.early_shedding.learn(context, refused=isinstance(refusal, Overloaded))
            # A forwarded request is deferred by the replica that forwarded it.
            relayed = isinstance(refusal, Relayed) and refusal.code is not grpc.StatusCode.RESOURCE_EXHAUSTED
            if context.call.forwarded or relayed or not context.call.caller.may_use(ServingPath.DEFERRED):
                raise
            left = context.left(self._clock.monotonic())
            ticket = await self._deferral.accept_refused(context.call.caller, context.request, left)
            if ticket is None:
                raise
            return answer.deferred(ticket, refusal)
        self.early_shedding.learn(context, refused=False)
        return answered

    async def _answer(self, context: RequestContext) -> Answer | bytes:
        request, call, snapshot = context.request, context.call, context.snapshot
        release = release_choice.choose(self._models, context)
        context.model = model = self._models.serving.models.get(release)
        if model is None:
            if call.forwarded or (release == any_release(context.name) and context.name in self._models.loads):
                raise release_choice.unloaded(self._models, context.name)
            routed = self._routed(context, release, {})
            return await self._forward(context, routed, self._decide(context, routed))
        self._shed_early(context, model)
        # From here on the model stays open until this request has ended, whatever is promoted meanwhile.
        with model.leases:
            encodings = await self._encode(context, model)
            published = await self._look_up(context, model, encodings)
            finish = self._finish_times(context, model, [it.tokens for it in encodings])
            routed = self._routed(context, release, finish, published is not None)
            decision = self._decide(context, routed)
            if published is not None:
                return answer.published(model, published, decision, request.top_k)
            if decision.replica == snapshot.local:
                try:
                    return await self._run(context, model, encodings, decision, finish.predicted(decision.path))
                except Overloaded:
                    tried = {decision.replica}
                    other = None if call.forwarded else another(decision, routed, snapshot, tried, _draw())
                    if other is None:
                        raise
                    decision = other
        return await self._forward(context, routed, decision)

    async def _encode(self, context: RequestContext, model: Model) -> list[Encoding]:
        """Raises: BadInput for pairs of texts where the model reads single ones, or the reverse; as `_shed_early`."""
        texts = model.encoder.reads.texts(context.request.texts, context.request.text_pairs)
        return await chunked_encoding.encode(model.encoder, texts, lambda some: self._shed_early(context, model, some))

    def _shed_early(self, context: RequestContext, model: Model, encoded: Sequence[Encoding] = ()) -> None:
        """Early load shedding: refuse a request that would be late even if its texts, those `encoded` so far excepted,
        had one token a word. A device with several times the work that it can do would else spend its host on refusals,
        and long texts of a short time theirs.

        Raises: Overloaded, ReplicaUnavailable, DeadlineExpired.
        """
        if context.deadline is None:
            return
        if encoded and context.deadline <= self._clock.monotonic():
            raise DeadlineExpired("the deadline passed while the texts were encoded")
        texts = context.request.texts
        if context.call.forwarded or not (encoded or self._device.busy or chunked_encoding.are_long(texts)):
            return
        if model.precomputed and model.precomputed.epoch:
            return
        tokens = [*(it.tokens for it in encoded), *map(model.encoder.fewest_tokens, texts[len(encoded) :])]
        finish = self._finish_times(context, model, tokens, at_least=True)
        self._choose(context, self._routed(context, model.release, finish))

    def _finish_times(
        self, context: RequestContext, model: Model, tokens: Sequence[int], at_least: bool = False
    ) -> FinishTimes:
        lanes = context.snapshot.lanes
        return FinishTimes(self._device, model, tokens, lanes, context.real_time, context.flow, at_least)

    async def _look_up(
        self, context: RequestContext, model: Model, encodings: Sequence[Encoding]
    ) -> list[PublishedScore] | None:
        """The published scores of all texts; None where one is missing, or a lane has to answer anyway."""
        call = context.call
        if model.precomputed is None or call.hint or (call.forwarded and call.forwarded.looked_up):
            return None
        if context.request.every_score and not answer.is_whole(model.heads):
            return None
        left = context.left(self._clock.monotonic())
        keys = [model.encoder.key(encoding) for encoding in encodings]
        return await model.precomputed.find(keys, float("inf") if left is None else left)

    def _routed(
        self, context: RequestContext, release: str, finish: Mapping[ServingPath, float], precomputed: bool = False
    ) -> RoutedRequest:
        """The request as the routing policy reads it. `finish`: seconds until this replica would answer, by lane."""
        request, remaining_budget = context.request, None
        if context.deadline is not None:
            remaining_budget = latest_finish(context.arrived, context.deadline) - self._clock.monotonic()
        texts, hint = len(request.texts), context.call.hint
        lanes = context.call.caller.lanes
        alone = finish.alone if isinstance(finish, FinishTimes) else None
        return RoutedRequest(
            texts, request.priority, request.timeout, remaining_budget, release, finish, hint, precomputed, lanes, alone
        )

    def _decide(self, context: RequestContext, routed: RoutedRequest) -> Decision:
        """The path and the replica. A forwarded request has been decided: this replica only carries it out, unless it
        finds the published scores that the other one did not look up."""
        forwarded, snapshot = context.call.forwarded, context.snapshot
        if forwarded and not routed.precomputed:
            decision = Decision(forwarded.path, snapshot.local, forwarded.reason)
        else:
            decision = self._choose(context, routed)
            self._metrics.decided(decision.path, decision.reason)
        context.path = decision.path
        return decision

    def _choose(self, context: RequestContext, routed: RoutedRequest) -> Decision:
        """Raises: as `decide`. A request that no replica would answer in time is one of its own lane."""
        snapshot = context.snapshot
        try:
            return decide(routed, snapshot.policy, snapshot, _draw())
        except (Overloaded, ReplicaUnavailable):
            context.path, _ = own_lane(routed, snapshot.policy)
            raise

    def _disguise(self, context: RequestContext, answered: Answer) -> None:
        """Show an answer of the published scores as the one that its lane would have computed: it tells that the text
        is in the archive. How long the call took still differs."""
        routed = self._routed(context, answered.release, {})
        path, reason = own_lane(routed, context.snapshot.policy)
        answer.disguise(answered, path, reason, self._device.lanes.get(path), context.elapsed(self._clock.monotonic()))

    async def _run(
        self,
        context: RequestContext,
        model: Model,
        encodings: Sequence[Encoding],
        decision: Decision,
        finish_in: float | None,
    ) -> Answer:
        """Compute the answer here. `finish_in`: seconds, as predicted for the decision; None where it was not."""
        with self._counted(context, model, encodings, decision.path):
            rows = await self._device.compute(
                model,
                decision.path,
                encodings,
                context.arrived,
                context.deadline,
                context.real_time,
                finish_in,
                context.flow,
            )
        return answer.computed(model, encodings, rows, decision, context.request.top_k)

    @contextlib.contextmanager
    def _counted(
        self, context: RequestContext, model: Model, encodings: Sequence[Encoding], path: ServingPath
    ) -> Iterator[None]:
        """Tell the other workers of this service of the work while it waits and runs."""
        forwarded, loads = context.call.forwarded, self._membership.worker_loads
        if loads is None or path not in context.snapshot.lanes or (forwarded and forwarded.counted):
            yield
            return
        lane = loads.own(path, context.real_time)
        seconds = sum([self._device.per_text(model, path, it.tokens) for it in encodings])
        lane.add(seconds)
        try:
            yield
        finally:
            lane.add(-seconds)

    async def _forward(self, context: RequestContext, routed: RoutedRequest, decision: Decision) -> bytes:
        call = context.call
        looked_up = context.model is not None and not call.hint
        passed = (*call.passed, (IDENTITY, identity.pack(call.caller)))
        forwarded = Forwarded(call.method, call.raw, context.deadline, passed, looked_up, call.repeated)
        return await self._forwarder.forward(forwarded, routed, decision)


def _draw() -> float:
    """Uniform in [0, 1), for the choice among replicas."""
    return random.random()  # noqa: S311 - no secret
