"""A collector: takes traces by OTLP over HTTP, and keeps their spans. `python -m tests.otlp` is one as a child
process, which only counts exports: reading them would take the time of what is measured."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True)
class Received:
    """A span. `kind`: like "SERVER"; `links`: ids of spans; times in nanoseconds; `service`: of its process."""

    trace: str
    id: str
    parent: str
    name: str
    kind: str
    attributes: dict[str, Any]
    links: tuple[str, ...]
    began: int
    ended: int
    failed: bool
    service: str
    events: int


@dataclass
class Collector:
    url: str
    exports: int = 0
    spans: list[Received] = field(default_factory=list)
    #: The exports as bytes: a text that is not in there is nowhere in a span.
    raw: bytearray = field(default_factory=bytearray)

    def environment(self, **more: str) -> dict[str, str]:
        """Of a program that sends its spans here, soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "50", **more}

    def of(self, trace: str) -> list[Received]:
        return [span for span in list(self.spans) if span.trace == trace]

    def until(self, trace: str, names: set[str], wanted: Callable[[list[Received]], object] = bool) -> list[Received]:
        """The spans of a trace, once they have all these names."""

        def there() -> bool:
            found = self.of(trace)
            return names <= {span.name for span in found} and bool(wanted(found))

        deadline = time.monotonic() + 20
        while not there():
            assert time.monotonic() < deadline, self.of(trace)
            time.sleep(0.02)
        return self.of(trace)


@contextlib.contextmanager
def collecting(answers: threading.Event | None = None, keep: bool = True) -> Iterator[Collector]:
    """`answers`: set when requests may be answered; None: at once. `keep`: read the spans."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            if answers:
                answers.wait(30)
            collector.exports += self.path == "/v1/traces"
            if keep and self.path == "/v1/traces":
                collector.raw.extend(raw)
                collector.spans.extend(_spans(ExportTraceServiceRequest.FromString(raw)))
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _spans(message: ExportTraceServiceRequest) -> Iterator[Received]:
    for resource in message.resource_spans:
        named = {it.key: _value(it.value) for it in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield _received(span, named["service.name"])


def _received(span: trace_pb2.Span, service: str) -> Received:
    return Received(
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        {it.key: _value(it.value) for it in span.attributes},
        tuple(link.span_id.hex() for link in span.links),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        service,
        len(span.events),
    )


def _value(value: AnyValue) -> Any:
    return getattr(value, value.WhichOneof("value") or "string_value")


if __name__ == "__main__":
    from tests.load import child

    with collecting(keep=False) as served:
        child.answer({"url": served.url}, lambda: {"exports": served.exports})
