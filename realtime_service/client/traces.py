"""The client's part of a trace: calls of a program that uses OpenTelemetry are spans of its traces."""

import contextlib
import sys
from collections.abc import Iterator

import grpc

from realtime_service.client.channel import SERVICE, Metadata


@contextlib.contextmanager
def calling(method: str) -> Iterator[None]:
    """A call with one answer, as a span under the program's current one. Nothing in a program that has not loaded
    OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        yield
        return
    from opentelemetry import trace

    attributes = {"rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": method}
    tracer, code = trace.get_tracer("tandem.client"), grpc.StatusCode.CANCELLED
    # Not what it would note of an exception by itself: its text may quote the caller's.
    span = tracer.start_span(f"{SERVICE}/{method}", kind=trace.SpanKind.CLIENT, attributes=attributes)
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield
        code = grpc.StatusCode.OK
    except grpc.RpcError as error:
        code = error.code()
        raise
    finally:
        span.set_attribute("rpc.grpc.status_code", code.value[0])
        if code is not grpc.StatusCode.OK:
            span.set_status(trace.StatusCode.ERROR)
        span.end()


def propagated() -> Metadata:
    """The program's current span, in metadata."""
    if "opentelemetry.trace" not in sys.modules:
        return ()
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return tuple(carrier.items())
