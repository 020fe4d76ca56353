"""Refuses a call of a burst on one look at its message, before anything else is done for it.

Where a device has more queued than it can do in the call's time, reading, checking and routing the request would only
take time from those that can be answered. But for its margin, and predictions that are up to 2 ms old, this refuses
nothing that the dispatcher would not refuse a moment later, once the calls ahead are queued; a request that cannot be
judged at a glance goes the whole way.

The margin: the look sees neither all tokens of a text nor how long the event loop takes to queue it. In an overload of
some seconds calls would wait until the look just lets them pass, and the dispatcher would refuse them after all, at a
higher cost, while the device is idle. So the look asks for some time more, which it learns from the calls that it let
pass.

In a burst many calls differ only in when they came, and a prediction for each costs a sixth of its refusal. So the
finish that was predicted for one call is taken for later calls like it, for 2 ms.
"""

import contextlib
import math
from dataclasses import dataclass

from protos.scoring.v1 import scoring_pb2
from realtime_service.cluster.membership import Membership
from realtime_service.errors import (
    LEAST_RETRY_SECONDS,
    Overloaded,
    PermissionDenied,
    ReplicaUnavailable,
    Status,
    status_of,
)
from realtime_service.execution.devices import Devices
from realtime_service.identity import Identity, of_model
from realtime_service.models.registry import Model, Models
from realtime_service.routing.policy import RoutedRequest, decide, own_lane
from realtime_service.routing.quotas import Quotas, texts_charged
from realtime_service.routing.snapshot import Snapshot
from realtime_service.scheduling.scheduler import latest_finish
from realtime_service.serving import chunked_encoding
from realtime_service.serving.finish_times import FinishTimes
from realtime_service.serving.request import PRIORITIES, RequestContext
from realtime_service.telemetry.metrics import Metrics, Outcome
from shared_model.clock import Clock
from shared_model.types import Priority, ServingPath

#: A call that has waited so long for the event loop is looked at although the device is idle.
_LATE_SECONDS = 0.005
#: Seconds by which the margin grows with each call that was refused after the look, and shrinks with each that was
#: not: so it settles where one of 40 is refused. `_MOST_MARGIN` bounds what short timeouts lose.
_MARGIN_UP, _MARGIN_DOWN, _MOST_MARGIN = 0.000_5, 0.000_5 / 40, 0.006
#: Seconds for which a predicted finish is taken for other calls. A batch that ends much sooner than predicted makes it
#: wrong for as long, which is the time of about eight refusals.
_STANDS_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class _Call:
    """The parts of a call that the prediction of its finish depends on. `ahead`: as in `EarlyShedding.refusal`. No
    model, which would not be freed while the call is known."""

    caller: Identity
    priority: Priority
    timeout: float
    release: str
    snapshot: Snapshot
    tokens: int
    ahead: int

    def no_sooner_than(self, other: "_Call") -> bool:
        """Whether no lane would answer this call sooner than the other one."""
        return (
            self.snapshot is other.snapshot
            and self.release == other.release
            and self.timeout == other.timeout
            and self.priority is other.priority
            and self.tokens >= other.tokens
            and self.ahead >= other.ahead
            and self.caller == other.caller
        )


@dataclass(frozen=True, slots=True)
class _Late:
    """A call that no lane of any replica would answer before `finish`, as predicted `at`, and its own lane. Times are
    monotonic seconds."""

    call: _Call
    path: ServingPath
    why: str
    finish: float
    at: float

    def holds_for(self, call: _Call, latest: float, now: float) -> bool:
        """Whether another call would be late as well. `latest`: the last finish that is in time for it."""
        return now - self.at <= _STANDS_SECONDS and latest < self.finish and call.no_sooner_than(self.call)


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
        self._late: _Late | None = None

    @property
    def quotas_apply(self) -> bool:
        """Whether any caller has a quota."""
        policy = self._membership.snapshot.policy
        return bool(policy.quota or policy.quotas)

    @property
    def starved(self) -> bool:
        """See `Devices.starved`."""
        return self._device.starved

    def needed(self, ahead: int, arrived: float) -> bool:
        """Whether a call that arrived then, with so many ahead of it, could be refused: a look at each would else be in
        vain."""
        if self.quotas_apply:
            return True
        late = self._clock.monotonic() - arrived > _LATE_SECONDS
        return bool(ahead or late or self._device.busy) and bool(self._membership.snapshot.lanes)

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
        """The end of a call whose caller is over its quota, or that no lane of any replica would answer in time; its
        caller names none. `arrived`: monotonic seconds; `ahead`: calls of its address that go to the device before it,
        and are not queued there yet."""
        now, flow = self._clock.monotonic(), of_model(caller.quota_key, self._models.serving.other(""))
        try:
            # Estimating the tokens of the texts takes longer than asking about one text.
            if message.texts and not message.model and self._quotas.over(flow, 1, now):
                self._check_quota(flow, texts_charged(message.texts, message.text_pairs), now)
            if _is_plain(message):
                self._check_finish(message, caller, flow, arrived, now, ahead)
        except Overloaded as error:
            return status_of(error)
        return None

    def _check_finish(
        self,
        message: scoring_pb2.ScoreRequest,
        caller: Identity,
        flow: str,
        arrived: float,
        now: float,
        ahead: int,
    ) -> None:
        """Raises: Overloaded."""
        serving, snapshot = self._models.serving, self._membership.snapshot
        model = serving.models.get(serving.choose("", caller.key, ""))
        if model is None:
            return
        tokens, timeout = model.encoder.fewest_tokens(message.texts[0]), message.timeout_ms / 1000
        call = _Call(caller, PRIORITIES[message.priority], timeout, model.release, snapshot, tokens, ahead)
        latest = latest_finish(arrived, arrived + timeout) - self._margin
        late = self._late
        if late is None or not late.holds_for(call, latest, now):
            self._late = late = self._judge(call, model, flow, latest, now)
        if late is None or _may_be_published(model, message):
            return
        self._metrics.ended(late.path, Outcome.REFUSED, serving.default_name)
        model.statistics.add_failed(now - arrived, unserved=True)
        raise Overloaded(late.why, late.finish - latest)

    def _judge(self, call: _Call, model: Model, flow: str, latest: float, now: float) -> _Late | None:
        """None for a call that may be in time."""
        snapshot, urgent = call.snapshot, call.priority is Priority.REAL_TIME
        finish = FinishTimes(
            self._device, model, [call.tokens], snapshot.lanes, urgent, flow, at_least=True, ahead=call.ahead
        )
        left, lanes = latest - now, call.caller.lanes
        routed = RoutedRequest(1, call.priority, call.timeout, left, model.release, finish, lanes=lanes)
        try:
            # The dispatcher answers the other errors.
            with contextlib.suppress(PermissionDenied, ReplicaUnavailable):
                decide(routed, snapshot.policy, snapshot, draw=0.0)
        except Overloaded as error:
            path, _ = own_lane(routed, snapshot.policy)
            # Of a call that is hardly late, the hint tells no finish.
            at = now if error.retry_after > LEAST_RETRY_SECONDS else -math.inf
            return _Late(call, path, error.why, latest + error.retry_after, at)
        return None

    def expired(self, waited: float) -> None:
        """Count a request whose deadline passed before it was read, so many seconds after it came. It is taken for one
        text of normal priority with that as its timeout, and so for a request of the lane that those have."""
        serving = self._models.serving
        routed = RoutedRequest(1, Priority.NORMAL, waited, 0.0, serving.active, {})
        path, _ = own_lane(routed, self._membership.snapshot.policy)
        self._metrics.ended(path, Outcome.EXPIRED, serving.default_name)
        if model := serving.models.get(serving.active):
            model.statistics.add_failed(waited, unserved=True)

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


def _is_plain(message: scoring_pb2.ScoreRequest) -> bool:
    """Whether a look tells when the message would be answered. Not every lane takes several texts, and not every
    replica another model."""
    if message.timeout_ms <= 0 or len(message.texts) != 1 or message.priority not in PRIORITIES:
        return False
    return not (message.allow_deferred or message.model or message.release)


def _may_be_published(model: Model, message: scoring_pb2.ScoreRequest) -> bool:
    """Whether the published epoch may have the score of the message's text, which then needs no device. It is encoded
    to ask; of a long one, or a pair, that is not tried."""
    published = model.precomputed
    if published is None or not published.epoch:
        return False
    if message.text_pairs or chunked_encoding.are_long(message.texts):
        return True
    return published.may_have(model.encoder.key(model.encoder.encode(message.texts[0])))
