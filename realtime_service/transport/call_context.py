"""Reads a call's metadata into the context that the dispatcher needs."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager

from realtime_service.cluster import forwarded_context
from realtime_service.cluster.forwarded_context import Metadata
from realtime_service.routing.inflight import InflightBytes
from realtime_service.serving.request import CallContext, check_name
from realtime_service.settings import SERVED
from realtime_service.transport.authentication import Callers
from realtime_service.transport.peer_call_context import PeerCallContext
from realtime_service.transport.rpc_handlers import Context
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
    """`is_peer`: whether a call's metadata shows that a replica sent it. `inflight`: the bytes of all requests under
    way."""

    def __init__(self, callers: Callers, is_peer: Callable[[Metadata], bool], inflight: InflightBytes) -> None:
        self._callers = callers
        self._is_peer = is_peer
        self._inflight = inflight

    def receive(self, method: str, raw: bytes, context: Context) -> CallContext:
        """Raises: Unauthenticated for an invalid token; BadInput for an unknown lane, a name that cannot be shown, or a
        malformed forwarded call."""
        metadata = context.invocation_metadata() or ()
        on_peer_stream = isinstance(context, PeerCallContext) and context.authenticated
        forwarded = forwarded_context.read(metadata) if on_peer_stream or self._is_peer(metadata) else None
        # A token is verified even if nothing depends on the caller.
        caller = functools.partial(self._callers.of, context)
        if self._callers.verify and forwarded is None:
            caller()
        passed = tuple((name, value) for name, value in metadata if name in _PASSED)
        for name, value in passed:
            check_name(name, str(value))
        repeated = any(name == _ATTEMPTS for name, _ in metadata)
        return CallContext(caller, context.time_remaining(), method, raw, _hint(metadata), passed, forwarded, repeated)

    def holding(self, call: CallContext, raw: bytes) -> AbstractContextManager[None]:
        """Hold the bytes of a request while it is under way. Raises: Overloaded."""
        return self._inflight.holding(call.payer, len(raw))


def _hint(metadata: Metadata) -> ServingPath | None:
    for name, value in metadata:
        if name == LANE:
            if value not in _LANES:
                raise BadInput(LANE, f"{value!r} is no lane; there are {', '.join(_LANES)}")
            return _LANES[str(value)]
    return None
