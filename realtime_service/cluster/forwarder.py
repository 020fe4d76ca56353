"""Sends a call on to the replica that was chosen for it, and to another one where the first fails and that is safe.

The answer goes to the caller as it came. The path is decided once, at the first hop, and kept while a replica that has
it can be reached, so that a dead endpoint costs no answer before its heartbeats expire. `rpc.retryable` decides whether
a call may be sent again, and `outlier_detection` which replicas get no calls for a while.
"""

import asyncio
import dataclasses
import logging
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from realtime_service.cluster.forwarded_context import ForwardedContext
from realtime_service.cluster.outlier_detection import OutlierDetector, Sign, sign_of
from realtime_service.cluster.peer_trust import PeerTrust
from realtime_service.cluster.peers import Peers, PeerTls
from realtime_service.errors import NEVER_AGAIN, DeadlineExpired, Relayed, ReplicaUnavailable
from realtime_service.routing.policy import Decision, RoutedRequest, another, stand_in
from realtime_service.rpc.retryable import (
    Failure,
    RetryBudget,
    by_transport,
    failure_of,
    may_repeat,
    retry_after,
    trailers_of,
)
from realtime_service.telemetry.calls import Hop
from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import Clock
from shared_model.errors import TandemError

if TYPE_CHECKING:
    from realtime_service.cluster.membership import Membership
    from realtime_service.routing.snapshot import Option, Snapshot

#: Between looks at the connections.
PERIOD_SECONDS = 0.25

_LOST_TWICE = "the connection to two replicas broke while they had this request: it is sent to no third"

#: `policy.another` or `policy.stand_in`.
Choice = Callable[[Decision, RoutedRequest, "Snapshot", Collection[str], float], Decision | None]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A call that may be sent on, as it came.

    `method`: like "/scoring.v1.ScoringService/Score"; `raw`: the request, unparsed; `deadline`: monotonic seconds,
    whatever ends first, None without one; `metadata`: what goes along: who calls, trace context. `looked_up`: the
    published scores have been asked already. `repeated`: its caller makes it for the second time.
    """

    method: str
    raw: bytes
    deadline: float | None
    metadata: tuple[tuple[str, str | bytes], ...]
    looked_up: bool = True
    repeated: bool = False


@dataclass(slots=True)
class _Life:
    """How far one call has come. `began`: monotonic seconds; `tried`: replicas it was sent to."""

    call: Forwarded
    request: RoutedRequest
    began: float
    tried: set[str] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)


class Forwarder:
    def __init__(
        self,
        membership: "Membership",
        metrics: Metrics,
        clock: Clock,
        trust: PeerTrust,
        draw: Callable[[], float] = random.random,
        tls: PeerTls | None = None,
    ) -> None:
        """`draw`: uniform in [0, 1). `tls`: of the connections to other replicas."""
        self._membership = membership
        self._metrics = metrics
        self._clock = clock
        self._draw = draw
        self._peers = Peers(trust, tls)
        self._outliers = OutlierDetector(draw)
        self._budget = RetryBudget()

    async def run(self) -> None:
        """Look after the connections until cancelled."""
        while True:
            await self.run_once()
            await asyncio.sleep(PERIOD_SECONDS)

    async def run_once(self) -> None:
        """Connect to new replicas, eject those that cannot be reached, and put those that can on trial."""
        snapshot = self._membership.snapshot
        others = [it.described for it in snapshot.replicas if it.id != snapshot.local]
        await self._peers.follow({it.address: it.tls for it in others})
        looks = {it.id: self._peers.at(it.address, it.tls).reachable for it in others}
        for replica in (replica for replica, reachable in looks.items() if reachable is False):
            self._hear(replica, Sign.UNREACHABLE)
        reachable = [replica for replica, reachable in looks.items() if reachable]
        self._outliers.settle(_servers(self._membership.snapshot), reachable, self._clock.monotonic())
        self._eject()

    async def close(self) -> None:
        """Calls under way are cancelled."""
        await self._peers.close()

    async def forward(self, call: Forwarded, request: RoutedRequest, decision: Decision) -> bytes:
        """The other replica's answer, unparsed.

        Raises: Relayed, the other's own refusal or failure; DeadlineExpired; ReplicaUnavailable if no replica could
        be reached.
        """
        life = _Life(call, request, self._clock.monotonic())
        if call.repeated:
            # Its first attempt may have ended a replica.
            life.failures.append(Failure.LOST)
        while True:
            try:
                answer = await self._send(life, decision)
            except (grpc.aio.AioRpcError, ReplicaUnavailable) as error:
                other = self._elsewhere(life, decision)
                if other is None:
                    raise _told(error, life.failures) from None
                decision = other
            else:
                self._budget.earn()
                return answer

    def _elsewhere(self, life: _Life, decision: Decision) -> Decision | None:
        """The next replica to try after a failure; None if the call must not be sent again."""
        if not may_repeat(life.failures):
            return None
        other = self._another(life, decision)
        # A lane that refused is full: what stands in for it must not be filled by the same flood.
        if other is None and Failure.REFUSED not in life.failures:
            other = self._another(life, decision, stand_in)
        if other is None or not self._budget.spend():
            return None
        self._metrics.forwarded_again(life.failures[-1])
        return other

    def _another(self, life: _Life, decision: Decision, choose: Choice = another) -> Decision | None:
        request = life.request
        if request.remaining_budget is not None:
            gone = self._clock.monotonic() - life.began
            request = dataclasses.replace(request, remaining_budget=request.remaining_budget - gone)
        return choose(decision, request, self._membership.snapshot, life.tried, self._draw())

    async def _send(self, life: _Life, decision: Decision) -> bytes:
        """Raises: grpc.aio.AioRpcError, which has been noted; DeadlineExpired; ReplicaUnavailable."""
        snapshot, call = self._membership.snapshot, life.call
        life.tried.add(decision.replica)
        began = self._clock.monotonic()
        if call.deadline is not None and call.deadline <= began:
            raise DeadlineExpired("the deadline passed before a replica could be asked")
        try:
            described = snapshot.described(decision.replica)
            peer = self._peers.at(described.address, described.tls)
        except KeyError as error:
            life.failures.append(Failure.NOT_SENT)
            raise ReplicaUnavailable("the replica has left; try again in a moment") from error
        left = None if call.deadline is None else call.deadline - began
        reached = snapshot.backlogged_by(decision.path, decision.replica)
        texts, urgent = life.request.texts, life.request.real_time
        # A heartbeat may change what a text takes before the call comes back.
        seconds = reached[0].per_text * texts if reached else 0.0
        _count_as_sent(reached, decision, seconds, texts, urgent)
        counted = bool(reached and reached[0].worker)
        forwarded_context = ForwardedContext(
            decision.path, life.request.release, decision.reason, call.looked_up, counted
        )
        hop, code = Hop(call.method, decision.replica, decision.path), grpc.StatusCode.CANCELLED
        metadata = (*forwarded_context.metadata(), *hop.metadata(call.metadata))
        try:
            answer = await peer.call(call.method, call.raw, left, metadata)
            code = grpc.StatusCode.OK
        except ReplicaUnavailable:
            code = grpc.StatusCode.UNAVAILABLE
            life.failures.append(Failure.NOT_SENT)
            raise
        except grpc.aio.AioRpcError as error:
            code = error.code()
            self._note(life, decision, error, self._clock.monotonic() - began)
            raise
        finally:
            hop.ended(code)
            _count_as_sent(reached, decision, -seconds, -texts, urgent)
        self._metrics.forwarded(decision.path, "answered")
        self._hear(decision.replica, Sign.ALIVE)
        return answer

    def _note(self, life: _Life, decision: Decision, error: grpc.aio.AioRpcError, seconds: float) -> None:
        """A send ended without an answer."""
        code, details = error.code(), error.details() or ""
        failure = failure_of(code, details, retry_after(trailers_of(error)))
        life.failures.append(failure)
        expired = code is grpc.StatusCode.DEADLINE_EXCEEDED
        self._metrics.forwarded(decision.path, "expired" if expired else failure)
        refused = failure is Failure.REFUSED
        self._hear(decision.replica, Sign.ALIVE if refused else sign_of(code, details, seconds))

    def _hear(self, replica: str, sign: Sign) -> None:
        if sign is Sign.ALIVE:
            self._outliers.answered(replica)
        elif sign is not Sign.NONE:
            servers, now = _servers(self._membership.snapshot), self._clock.monotonic()
            if self._outliers.failed(replica, sign, servers, now):
                log.warning("%s is left alone for a while: %s", replica, sign)
                self._metrics.ejected(sign)
                self._eject()

    def _eject(self) -> None:
        self._membership.eject(self._outliers.ejected)
        self._metrics.set_ejected(len(self._outliers.ejected))


def _servers(snapshot: "Snapshot") -> list[str]:
    """Replicas that take requests, this one included if it does."""
    return [it.id for it in snapshot.replicas if it.options and not it.described.draining]


def _count_as_sent(reached: Iterable["Option"], decision: Decision, seconds: float, texts: int, urgent: bool) -> None:
    """While a call is under way, its replica is predicted to answer others later by its device time; when it has come
    back, both numbers are negative.

    `reached`: the lanes that wait for it; `urgent`: it goes before others of its lane, and those like it wait for it.
    """
    for option in reached:
        its_own = option.path is decision.path
        # A lane that is less urgent waits for all of it.
        option.send(seconds, texts * its_own, urgent or not its_own)
        if its_own:
            option.tell(seconds, urgent)


def _told(error: grpc.aio.AioRpcError | ReplicaUnavailable, failures: Sequence[Failure]) -> TandemError:
    """The error that the caller gets for the last failure of a call."""
    if isinstance(error, ReplicaUnavailable):
        return error
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExpired("the deadline passed before another replica answered")
    # CANCELLED would say that the caller cancelled the call, but the replica ended it.
    if code is grpc.StatusCode.CANCELLED or by_transport(details):
        if failures.count(Failure.LOST) > 1:
            return Relayed(grpc.StatusCode.UNAVAILABLE, _LOST_TWICE, (NEVER_AGAIN,))
        return ReplicaUnavailable("no other replica could be reached; try again in a moment")
    return Relayed(code, details, trailers_of(error))
