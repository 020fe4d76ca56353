"""Relays calls about models to another replica, for a process without lanes."""

import contextlib
from dataclasses import replace

from google.protobuf.message import DecodeError

from protos.scoring.v1.scoring_pb2 import DescribeRequest
from realtime_service import identity
from realtime_service.cluster.forwarder import Forwarded, Forwarder
from realtime_service.cluster.membership import Membership
from realtime_service.errors import MessageTooLarge
from realtime_service.routing.policy import RoutedRequest, decide
from realtime_service.routing.snapshot import ANY_RELEASE, Snapshot, any_release
from realtime_service.serving.request import IDENTITY
from realtime_service.transport.rpc_handlers import Arrival, CallerMethod, Context
from shared_model.clock import Clock
from shared_model.types import Priority

#: Questions about models are short.
_MOST_BYTES = 64 * 1024
#: A request that any replica with lanes can answer.
_ANY = RoutedRequest(1, Priority.UNSPECIFIED, None, None, ANY_RELEASE, {})


def _request(raw: bytes, snapshot: Snapshot) -> RoutedRequest:
    """One that any replica with lanes can answer that serves the model in question, if that is another than the default
    one. All messages about models name it in their first field."""
    asked = DescribeRequest()
    # The replica refuses a damaged one.
    with contextlib.suppress(DecodeError):
        asked.ParseFromString(raw)
    release = any_release(asked.model)
    return replace(_ANY, release=release) if snapshot.serves(release) else _ANY


class Relay:
    def __init__(self, forwarder: Forwarder, membership: Membership, clock: Clock) -> None:
        self._forwarder = forwarder
        self._membership = membership
        self._clock = clock

    def method(self, name: str) -> CallerMethod:
        """A handler that forwards calls of a method. `name`: like "/scoring.v1.ScoringService/Describe"."""

        async def handler(raw: bytes, context: Context, arrival: Arrival) -> bytes:
            if len(raw) > _MOST_BYTES:
                raise MessageTooLarge(f"the message has {len(raw)} bytes, at most {_MOST_BYTES} are forwarded")
            snapshot, left = self._membership.snapshot, context.time_remaining()
            request = _request(raw, snapshot)
            decision = decide(request, snapshot.policy, snapshot, draw=0.0)
            deadline = None if left is None else self._clock.monotonic() + left
            who = ((IDENTITY, identity.pack(arrival.caller)),)
            return await self._forwarder.forward(Forwarded(name, raw, deadline, who), request, decision)

        return handler
