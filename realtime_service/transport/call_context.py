"""From what the transport tells of a call to what the dispatcher needs to know of it."""

import functools
from collections.abc import Callable

from realtime_service.cluster import forwarded_context
from realtime_service.routing.snapshot import Snapshot
from realtime_service.serving.request import CallContext
from realtime_service.transport.authentication import Callers
from realtime_service.transport.rpc_handlers import Context
from shared_model.errors import BadInput
from shared_model.types import ServingPath

#: Metadata by which a caller names a lane.
LANE = "x-tandem-lane"
#: Metadata of gRPC's own: how often its retries have made this call before.
_ATTEMPTS = "grpc-previous-rpc-attempts"
#: What goes along with a call that is sent on: who calls, and the trace it belongs to.
_PASSED = ("x-caller-id", "traceparent", "tracestate")
_LANES = {str(lane): lane for lane in (ServingPath.LATENCY, ServingPath.DYNAMIC, ServingPath.THROUGHPUT)}


class ContextReader:
    """`snapshot` tells what is known of the other replicas now."""

    def __init__(self, callers: Callers, snapshot: Callable[[], Snapshot]) -> None:
        self._callers = callers
        self._snapshot = snapshot

    def receive(self, method: str, raw: bytes, context: Context) -> CallContext:
        """Raises: Unauthenticated for a caller whose token is not valid; BadInput for a lane there is no such of."""
        metadata = context.invocation_metadata() or ()
        came = forwarded_context.arrived_by(metadata, self._snapshot().cluster_token)
        # A token is verified whether or not anything depends on whose it is.
        caller = functools.partial(self._callers.of, context)
        if self._callers.verify and came is None:
            caller()
        passed = tuple((name, value) for name, value in metadata if name in _PASSED)
        repeated = any(name == _ATTEMPTS for name, _ in metadata)
        return CallContext(caller, context.time_remaining(), method, raw, _hint(metadata), passed, came, repeated)


def _hint(metadata: forwarded_context.Metadata) -> ServingPath | None:
    for name, value in metadata:
        if name == LANE:
            if value not in _LANES:
                raise BadInput(LANE, f"{value!r} is no lane; there are {', '.join(_LANES)}")
            return _LANES[str(value)]
    return None
