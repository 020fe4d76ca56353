"""Reads a call's metadata into the context that the dispatcher needs."""

from collections.abc import Callable

from realtime_service import identity
from realtime_service.cluster import forwarded_context
from realtime_service.errors import Unauthenticated
from realtime_service.identity import Identity
from realtime_service.routing.snapshot import Snapshot
from realtime_service.serving.request import IDENTITY, CallContext
from realtime_service.settings import SERVED
from realtime_service.transport.authentication import Callers
from realtime_service.transport.rpc_handlers import Arrival, Context
from shared_model.errors import BadInput
from shared_model.types import ServingPath

#: Metadata by which a caller names a lane.
LANE = "x-tandem-lane"
#: Metadata that gRPC adds when it makes a call again.
_ATTEMPTS = "grpc-previous-rpc-attempts"
#: Metadata that a forwarded call keeps: caller and trace.
_PASSED = ("x-caller-id", "traceparent", "tracestate")
_LANES = {str(lane): lane for lane in SERVED}


class ContextReader:
    """`snapshot` returns the current snapshot."""

    def __init__(self, callers: Callers, snapshot: Callable[[], Snapshot]) -> None:
        self._callers = callers
        self._snapshot = snapshot

    async def arrive(self, context: Context) -> Arrival:
        """The caller, and how its call came here. Another replica has identified the callers of the calls that it
        forwards. Raises: Unauthenticated."""
        metadata = context.invocation_metadata() or ()
        forwarded = forwarded_context.arrived_by(metadata, self._snapshot().cluster_token)
        if forwarded is None:
            return Arrival(await self._callers.identify(context))
        return Arrival(_passed_on(metadata) or self._callers.of_earlier_replica(context), forwarded)

    def receive(self, method: str, raw: bytes, context: Context, arrival: Arrival) -> CallContext:
        """The context of one request of a call that has arrived. Raises: BadInput for an unknown lane."""
        metadata = context.invocation_metadata() or ()
        passed = tuple((name, value) for name, value in metadata if name in _PASSED)
        repeated = any(name == _ATTEMPTS for name, _ in metadata)
        return CallContext(
            arrival.caller, context.time_remaining(), method, raw, _hint(metadata), passed, arrival.forwarded, repeated
        )


def _passed_on(metadata: forwarded_context.Metadata) -> Identity | None:
    """The caller as another replica has identified it; None from one of an earlier version. Raises: Unauthenticated."""
    for name, value in metadata:
        if name == IDENTITY:
            try:
                return identity.unpack(str(value))
            except (ValueError, KeyError, TypeError) as error:
                raise Unauthenticated("the forwarded call names no caller that this replica can read") from error
    return None


def _hint(metadata: forwarded_context.Metadata) -> ServingPath | None:
    for name, value in metadata:
        if name == LANE:
            if value not in _LANES:
                raise BadInput(LANE, f"{value!r} is no lane; there are {', '.join(_LANES)}")
            return _LANES[str(value)]
    return None
