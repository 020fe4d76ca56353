"""Reads a call's metadata into the context that the dispatcher needs."""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from realtime_service import identity
from realtime_service.cluster import forwarded_context
from realtime_service.cluster.forwarded_context import Metadata
from realtime_service.errors import Unauthenticated
from realtime_service.identity import Identity
from realtime_service.routing.inflight import Inflight
from realtime_service.serving.request import IDENTITY, CallContext, check_name
from realtime_service.settings import SERVED
from realtime_service.telemetry.calls import NO_TRACER, TRACEPARENT, TRACESTATE, CallTracer
from realtime_service.telemetry.scope import SCOPE, Scope
from realtime_service.transport import compression, messages
from realtime_service.transport.accept_queue import ARRIVED
from realtime_service.transport.authentication import Callers
from realtime_service.transport.peer_call_context import PeerCallContext
from realtime_service.transport.plain_call_context import PlainCallContext
from realtime_service.transport.rpc_handlers import Arrival, Context
from realtime_service.transport.stream_turns import StreamReader, StreamTurns
from shared_model.errors import BadInput
from shared_model.types import ServingPath

#: Metadata by which a caller names a lane.
LANE = "x-tandem-lane"
#: Metadata that gRPC adds when it makes a call again.
_ATTEMPTS = "grpc-previous-rpc-attempts"
#: Metadata that a forwarded call keeps: caller and trace.
_PASSED = ("x-caller-id", TRACEPARENT, TRACESTATE)
_LANES = {str(lane): lane for lane in SERVED}


class ContextReader:
    """`is_peer`: whether a call's metadata shows that a replica sent it. `inflight`: the bytes of all requests under
    way; `calls`: all calls and streams; `watched`: the bytes of `WatchResults` requests; `turns`: of the
    messages of streams; `tracer`: of requests."""

    def __init__(
        self,
        callers: Callers,
        is_peer: Callable[[Metadata], bool],
        inflight: Inflight,
        calls: Inflight,
        watched: Inflight,
        turns: StreamTurns,
        tracer: CallTracer = NO_TRACER,
    ) -> None:
        self._tracer = tracer
        self._turns = turns
        self._calls = calls
        self._watched = watched
        self._callers = callers
        self._is_peer = is_peer
        self._inflight = inflight

    async def arrive(self, context: Context) -> Arrival:
        """The caller, and how its call came here. Another replica has identified the callers of the calls that it
        forwards. Raises: Unauthenticated; BadInput for a malformed forwarded call."""
        metadata = context.invocation_metadata() or ()
        on_peer_stream = isinstance(context, PeerCallContext) and context.authenticated
        if not (on_peer_stream or self._is_peer(metadata)):
            return Arrival(await self._callers.identify(context))
        caller = _passed_on(metadata) or self._callers.of_earlier_replica(context)
        return Arrival(caller, forwarded_context.read(metadata))

    def receive(self, method: str, raw: bytes, context: Context, arrival: Arrival) -> CallContext:
        """The context of one request of a call that has arrived. Raises: BadInput for an unknown lane, or a name that
        cannot be shown."""
        SCOPE.set(Scope(arrival.caller.key, context.http if isinstance(context, PlainCallContext) else None))
        metadata = context.invocation_metadata() or ()
        passed = tuple((name, value) for name, value in metadata if name in _PASSED)
        for name, value in passed:
            check_name(name, str(value))
        repeated = any(name == _ATTEMPTS for name, _ in metadata)
        return CallContext(
            arrival.caller,
            context.time_remaining(),
            method,
            raw,
            _hint(metadata),
            passed,
            arrival.forwarded,
            repeated,
            ARRIVED.get(),
        )

    def caller(self, context: Context) -> Identity | None:
        """The caller, where it is known at once; None for a replica, for a caller whose token is not known, and for one
        that names a lane."""
        metadata = context.invocation_metadata() or ()
        if self._is_peer(metadata) or any(name == LANE for name, _ in metadata):
            return None
        with suppress(Unauthenticated):
            return self._callers.of(context)
        return None

    def counted(self, arrival: Arrival) -> AbstractContextManager[None]:
        """Count a call, or a stream, while it is under way. Raises: Overloaded."""
        return self._calls.holding(_payer(arrival), 1)

    def reader(self, context: Context) -> StreamReader:
        """Of the messages of a stream."""
        return self._turns.reader(context)

    async def decompressed(self, raw: bytes, arrival: Arrival) -> bytes:
        """A message as it is parsed; its bytes are held before they exist. Raises: Overloaded; BadInput;
        MessageTooLarge."""
        if not compression.is_compressed(raw):
            return raw
        size = compression.parsed_size(raw)
        messages.check_size(size)
        with self._inflight.holding(_payer(arrival), size):
            if size <= messages.SMALL_BYTES:
                return compression.decompress(raw, size)
            return await messages.apart(compression.decompress, raw, size)

    def holding(self, call: CallContext, raw: bytes) -> AbstractContextManager[None]:
        """Hold the bytes of a request while it is under way. Raises: Overloaded."""
        return self._inflight.holding(call.payer, len(raw))

    def serving(self, call: CallContext, raw: bytes) -> AbstractContextManager[None]:
        """As `holding`, in a span of its own if the request is sampled. Raises: Overloaded."""
        held, forwarded = self.holding(call, raw), call.forwarded is not None
        return self._tracer.traced(call.method, call.passed, held, forwarded=forwarded, arrived=call.arrived)

    def watching(self, arrival: Arrival, raw: bytes) -> AbstractContextManager[None]:
        """Hold the bytes of a `WatchResults` request, for as long as it lasts, and so in a budget of their own. Raises:
        Overloaded."""
        return self._watched.holding(_payer(arrival), len(raw))


def _payer(arrival: Arrival) -> str | None:
    """None for a forwarded call: its caller pays at the replica that forwarded it."""
    return None if arrival.forwarded else arrival.caller.quota_key


def _passed_on(metadata: Metadata) -> Identity | None:
    """The caller as another replica has identified it; None from one of an earlier version. Raises: Unauthenticated."""
    for name, value in metadata:
        if name == IDENTITY:
            try:
                return identity.unpack(str(value))
            except (ValueError, KeyError, TypeError) as error:
                raise Unauthenticated("the forwarded call names no caller that this replica can read") from error
    return None


def _hint(metadata: Metadata) -> ServingPath | None:
    for name, value in metadata:
        if name == LANE:
            if value not in _LANES:
                raise BadInput(LANE, f"{value!r} is no lane; there are {', '.join(_LANES)}")
            return _LANES[str(value)]
    return None
