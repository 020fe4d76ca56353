"""The spans of calls, named by OpenTelemetry's conventions: one that is served here, and one that is forwarded."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import grpc

from realtime_service.errors import status_of
from realtime_service.telemetry.scope import SCOPE, Scope
from shared_model import tracing
from shared_model.tracing import Kind, Work

if TYPE_CHECKING:
    from shared_model.tracing.tracer import Tracer

Code = grpc.StatusCode

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_CODE = "rpc.grpc.status_code"
#: Ends that are failures of the service, not of its caller.
_FAILURES = frozenset({Code.UNKNOWN, Code.DEADLINE_EXCEEDED, Code.INTERNAL, Code.UNAVAILABLE, Code.DATA_LOSS})

Metadata = Iterable[tuple[str, str | bytes]]


class CallTracer:
    """Decides whether a call is traced, once; it has no span otherwise. `tracer`: None where tracing is off."""

    def __init__(self, tracer: "Tracer | None") -> None:
        self._tracer = tracer

    def traced(
        self,
        method: str,
        metadata: Metadata,
        held: AbstractContextManager[None],
        *,
        forwarded: bool,
        arrived: float | None,
    ) -> AbstractContextManager[None]:
        """`held`, or the same within a span. `metadata`: that may hold a trace; `forwarded`: a replica that forwards
        a call without one has decided. `arrived`: monotonic seconds."""
        if self._tracer is None:
            return held
        headers = (TRACEPARENT, TRACESTATE)
        carrier = {name: value for name, value in metadata if name in headers and isinstance(value, str)}
        if forwarded and TRACEPARENT not in carrier:
            return held
        scope = SCOPE.get() or Scope("")
        http = scope.http
        name = f"{http.verb} {http.route}" if http else method[1:]
        if (sampled := self._tracer.sampled(name, carrier, Kind.SERVER)) is None:
            return held
        attributes = {"http.request.method": http.verb, "http.route": http.route} if http else rpc(method)
        waited = 0.0 if arrived is None else time.monotonic() - arrived
        span = self._tracer.begin(sampled, time.time_ns() - round(waited * 1e9), attributes)
        return _serving(Work(self._tracer, span), scope, held)

    def resumed(self, traceparent: str) -> AbstractContextManager[None]:
        """A span of work that was submitted earlier. `traceparent`: as it was stored."""
        if self._tracer is None or not traceparent:
            return nullcontext()
        carrier = {TRACEPARENT: traceparent}
        if (sampled := self._tracer.sampled(tracing.PROCESS, carrier, Kind.CONSUMER)) is None:
            return nullcontext()
        return _resuming(Work(self._tracer, self._tracer.begin(sampled, attributes=tracing.MESSAGING)))


NO_TRACER = CallTracer(None)


@contextmanager
def _resuming(work: Work) -> Iterator[None]:
    try:
        with tracing.working(work):
            yield
    except BaseException as error:
        work.span.fail(error)
        raise
    finally:
        work.span.end()


@contextmanager
def _serving(work: Work, scope: Scope, held: AbstractContextManager[None]) -> Iterator[None]:
    code = Code.OK
    # Logs name the trace also after its end, which is when a refusal is logged.
    scope.work = work
    try:
        with tracing.working(work), held:
            yield
    except (Exception, asyncio.CancelledError) as error:
        code = Code.CANCELLED if isinstance(error, asyncio.CancelledError) else status_of(error).code
        if code in _FAILURES:
            work.span.fail(error)
        raise
    finally:
        work.span.set_attributes({_CODE: code.value[0]})
        if scope.http:
            work.span.set_attributes({"http.response.status_code": scope.http.status(code)})
        work.span.end()


class Hop:
    """A call that is sent to another replica, if it is traced."""

    def __init__(self, method: str, replica: str, path: str) -> None:
        self._span = None
        if (work := tracing.current()) is not None:
            attributes = {**rpc(method), "tandem.replica": replica, "tandem.path": path}
            self._span = work.tracer.child(work.span, method[1:], Kind.CLIENT, attributes=attributes)

    def metadata(self, metadata: tuple[tuple[str, str | bytes], ...]) -> tuple[tuple[str, str | bytes], ...]:
        """The metadata that goes along: this span takes the place of the one that the call came with."""
        if self._span is None:
            return metadata
        from shared_model.tracing.tracer import headers

        kept = [it for it in metadata if it[0] not in (TRACEPARENT, TRACESTATE)]
        return (*kept, *headers(self._span.ids).items())

    def ended(self, code: Code) -> None:
        if self._span is not None:
            self._span.set_attributes({_CODE: code.value[0]})
            if code is not Code.OK:
                self._span.fail(code.name)
            self._span.end()


def rpc(method: str) -> dict[str, str]:
    """`method`: like "/scoring.v1.ScoringService/Score"."""
    service, _, name = method[1:].partition("/")
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
