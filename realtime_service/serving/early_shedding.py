"""Refuses a call of a burst on one look at its message, before anything else is done for it.

Where a device has more queued than it can do in the call's time, reading, checking and routing the request would only
take time from those that can be answered. But for its margin this refuses nothing that the dispatcher would not refuse
a moment later, once the calls ahead are queued; a request that cannot be judged at a glance goes the whole way.

The margin: the look sees neither all tokens of a text nor how long the event loop takes to queue it. In an overload of
some seconds calls would wait until the look just lets them pass, and the dispatcher would refuse them after all, at a
higher cost, while the device is idle. So the look asks for some time more, which it learns from the calls that it let
pass.
"""

import math

from protos.scoring.v1 import scoring_pb2
from realtime_service.cluster.membership import Membership
from realtime_service.errors import Overloaded, PermissionDenied, Status, status_of
from realtime_service.execution.devices import Devices
from realtime_service.identity import Identity, of_model
from realtime_service.models.registry import Model, Models
from realtime_service.routing.policy import RoutedRequest, may_take, own_lane
from realtime_service.routing.quotas import Quotas, texts_charged
from realtime_service.scheduling.scheduler import latest_finish
from realtime_service.serving.request import PRIORITIES, RequestContext
from realtime_service.telemetry.metrics import Metrics, Outcome
from shared_model.clock import Clock

#: A call that has waited so long for the event loop is looked at although the device is idle.
_LATE_SECONDS = 0.005
#: Seconds by which the margin grows with each call that was refused after the look, and shrinks with each that was
#: not: so it settles where one of 40 is refused. `_MOST_MARGIN` bounds what short timeouts lose.
_MARGIN_UP, _MARGIN_DOWN, _MOST_MARGIN = 0.000_5, 0.000_5 / 40, 0.006


class EarlyShedding:
    def __init__(
        self,
        models: Models,
        device: Devices,
        membership: Membership,
        quotas: Quotas,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._models = models
        self._device = device
        self._membership = membership
        self._quotas = quotas
        self._metrics = metrics
        self._clock = clock
        self._margin = 0.0

    @property
    def quotas_apply(self) -> bool:
        """Whether any caller has a quota."""
        policy = self._membership.snapshot.policy
        return bool(policy.quota or policy.quotas)

    def needed(self, ahead: int, arrived: float) -> bool:
        """Whether a call that arrived then, with so many ahead of it, could be refused: a look at each would else be in
        vain."""
        if self.quotas_apply:
            return True
        late = self._clock.monotonic() - arrived > _LATE_SECONDS
        return bool(ahead or late or self._device.busy) and not self._membership.snapshot.options

    def learn(self, context: RequestContext, refused: bool) -> None:
        """Adapt the margin to a request that the dispatcher has answered, or refused, if the look could judge it."""
        request, call = context.request, context.call
        if call.arrived is None or call.forwarded or call.hint or request.timeout is None or len(request.texts) != 1:
            return
        if request.allow_deferred or request.model or request.release:
            return
        step = _MARGIN_UP if refused else -_MARGIN_DOWN
        self._margin = min(max(0.0, self._margin + step), _MOST_MARGIN)

    def refusal(
        self, message: scoring_pb2.ScoreRequest, caller: Identity, arrived: float, ahead: int = 0
    ) -> Status | None:
        """The end of a call whose caller is over its quota, or that no lane here would answer in time; its caller names
        none. `arrived`: monotonic seconds; `ahead`: calls of its address that go to the device before it, and are not
        queued there yet."""
        serving, timeout = self._models.serving, message.timeout_ms / 1000
        now, flow = self._clock.monotonic(), of_model(caller.quota_key, serving.other(""))
        try:
            # Estimating the tokens of the texts takes longer than asking about one text.
            if message.texts and not message.model and self._quotas.over(flow, 1, now):
                self._check_quota(flow, texts_charged(message.texts, message.text_pairs), now)
        except Overloaded as error:
            return status_of(error)
        # Not every lane takes several texts, and not every replica another model.
        if timeout <= 0 or len(message.texts) != 1 or message.allow_deferred or message.model or message.release:
            return None
        if message.priority not in PRIORITIES:
            return None
        model = serving.models.get(serving.choose("", caller.key, ""))
        if self._membership.snapshot.options or model is None or (model.precomputed and model.precomputed.epoch):
            return None
        left = latest_finish(arrived, arrived + timeout) - now - self._margin
        routed = RoutedRequest(1, PRIORITIES[message.priority], timeout, left, model.release, {}, lanes=caller.lanes)
        soonest = self._soonest(model, routed, flow, ahead, model.encoder.fewest_tokens(message.texts[0]))
        if soonest <= left:
            return None
        self._metrics.ended(None, Outcome.REFUSED, serving.default_name)
        model.statistics.add_failed(now - arrived, unserved=True)
        return status_of(Overloaded("the answer would come too late", max(0.001, soonest - left)))

    def check_quota(self, caller: Identity, model: str, charged: int) -> None:
        """Raises: Overloaded where the caller may not have so many texts scored now. Those that it may have are counted
        later, with their request."""
        flow = of_model(caller.quota_key, self._models.serving.other(model))
        self._check_quota(flow, charged, self._clock.monotonic())

    def _check_quota(self, flow: str, charged: int, now: float) -> None:
        if self._quotas.over(flow, charged, now):
            try:
                self._quotas.admit(flow, charged, now)
            except Overloaded:
                self._metrics.ended(None, Outcome.REFUSED)
                raise

    def _soonest(self, model: Model, request: RoutedRequest, flow: str, ahead: int, tokens: int) -> float:
        """Seconds until the first lane that may take the request would answer a text of at least so many tokens; minus
        infinity where none may."""
        try:
            own, _ = own_lane(request, self._membership.snapshot.policy)
        except PermissionDenied:
            return -math.inf
        finishes = {}
        for lane in self._membership.snapshot.lanes:
            finish = self._device.finish_of(model, lane, [tokens], request.real_time, flow, at_least=True)
            if finish is not None:
                typical = self._device.typical(model, lane, 1) if ahead else None
                finishes[lane] = finish + (ahead * typical[2] if typical else 0.0)
        return min((finishes[lane] for lane in finishes if may_take(lane, own, finishes)), default=-math.inf)
