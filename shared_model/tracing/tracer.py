"""Spans of one process: which are sampled, whose children they are, and their export."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared_model.tracing import ERROR_TYPE, Attributes, Kind
from shared_model.tracing.export import BoundedProcessor, Losses

#: Longest wait for the last spans when the process ends, and then for an export that has failed and would be tried
#: again.
_CLOSING_SECONDS, _GIVING_UP_SECONDS = 2.0, 0.5
_NOWHERE = Context()
_KINDS = {kind: SpanKind[kind.name] for kind in Kind}
_PROPAGATOR = TraceContextTextMapPropagator()
_SCOPE = InstrumentationScope("tandem", "", "", {})
_SAMPLED, _RANDOM = TraceFlags.SAMPLED, TraceFlags.RANDOM_TRACE_ID


class Sampled(NamedTuple):
    """A trace that is recorded, and its first span here. `above`: the span before it, of another process."""

    name: str
    kind: Kind
    above: SpanContext | None
    trace_id: int


class Span(ReadableSpan):
    """A span that is recorded. The SDK's own costs seven times as much to begin and end."""

    def __init__(
        self,
        tracer: "Tracer",
        name: str,
        kind: Kind,
        ids: tuple[SpanContext, SpanContext | None],
        start: int | None,
        attributes: Attributes | None,
        links: Sequence["Span"],
    ) -> None:
        """`ids`: its own, and those of its parent; `start`: nanoseconds since 1970, None: now."""
        self.ids: SpanContext = ids[0]
        self._tracer = tracer
        self._noted = dict(attributes or {})
        super().__init__(
            name,
            *ids,
            tracer.resource,
            self._noted,
            links=[Link(it.ids) for it in links],
            kind=_KINDS[kind],
            start_time=time.time_ns() if start is None else start,
            instrumentation_scope=_SCOPE,
        )

    def set_attributes(self, more: Attributes) -> None:
        self._noted.update(more)

    def fail(self, error: BaseException | str) -> None:
        """Note an error by its kind: its text may quote a message."""
        self._noted[ERROR_TYPE] = error if isinstance(error, str) else type(error).__qualname__
        self._status = Status(StatusCode.ERROR)

    def end(self, end: int | None = None) -> None:
        """Once. `end`: nanoseconds since 1970, None: now."""
        self._end_time = time.time_ns() if end is None else end
        self._tracer.ended(self)


class _HashedOnce(Resource):
    """The exporter groups spans by their resource, and would hash it as JSON for each."""

    def __init__(self, resource: Resource) -> None:
        super().__init__(resource.attributes, resource.schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash


class Tracer:
    """Whether a trace is recorded is decided once, before it has a span: one that is not sampled has none."""

    def __init__(self, service: str, dropped: Callable[[int], object]) -> None:
        """As `tracing.start`. The sampler, the exporter and its queue read their variables themselves."""
        self._random = RandomIdGenerator()
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler
        self._processor = BoundedProcessor(Losses(dropped))
        named = Resource.create({"service.name": service}).merge(OTELResourceDetector().detect())
        #: Of all spans.
        self.resource = _HashedOnce(named)
        #: Takes a span that has ended.
        self.ended = self._processor.on_end

    def sampled(self, name: str, carrier: Mapping[str, str], kind: Kind = Kind.INTERNAL) -> Sampled | None:
        """Decides whether a trace is recorded, of which this process begins its first span; None where it is not.
        `carrier`: the headers of the span before it, if any; what is malformed counts as absent."""
        parent = _PROPAGATOR.extract(carrier, _NOWHERE) if carrier else _NOWHERE
        above = trace.get_current_span(parent).get_span_context() if carrier else trace.INVALID_SPAN_CONTEXT
        trace_id = above.trace_id if above.is_valid else self._random.generate_trace_id()
        decided = self._sampler.should_sample(parent, trace_id, name, _KINDS[kind])
        if decided.decision is not Decision.RECORD_AND_SAMPLE:
            return None
        return Sampled(name, kind, above if above.is_valid else None, trace_id)

    def begin(
        self,
        sampled: Sampled,
        start: int | None = None,
        attributes: Attributes | None = None,
        links: Sequence[Span] = (),
    ) -> Span:
        """The first span of this process in a trace. `start`: nanoseconds since 1970."""
        name, kind, above, trace_id = sampled
        random = _RANDOM if above is None else above.trace_flags & _RANDOM
        state = above.trace_state if above else None
        ids = SpanContext(trace_id, self._random.generate_span_id(), False, TraceFlags(_SAMPLED | random), state)
        return Span(self, name, kind, (ids, above), start, attributes, links)

    def child(
        self,
        parent: Span,
        name: str,
        kind: Kind = Kind.INTERNAL,
        start: int | None = None,
        attributes: Attributes | None = None,
        links: Sequence[Span] = (),
    ) -> Span:
        """As `begin`, for a part of what `parent` is."""
        above = parent.ids
        own = self._random.generate_span_id()
        ids = SpanContext(above.trace_id, own, False, above.trace_flags, above.trace_state)
        return Span(self, name, kind, (ids, above), start, attributes, links)

    def carried(self, span: Span | None, received: Mapping[str, str]) -> dict[str, str]:
        """The headers by which another process continues a trace. `span`: None where it is not sampled, `received`: the
        headers that it came with: without any, the other process would decide again."""
        if span:
            return headers(span.ids)
        if received:
            return dict(received)
        ids = self._random.generate_trace_id(), self._random.generate_span_id()
        return headers(SpanContext(*ids, is_remote=False, trace_flags=TraceFlags(TraceFlags.DEFAULT)))

    def close(self) -> None:
        """Export what is left, for a moment at most."""
        # In a thread that ends with the process: a collector that takes the connection and does not answer holds it.
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSING_SECONDS)
        if closing.is_alive():
            self._processor.give_up()
            closing.join(_GIVING_UP_SECONDS)


def headers(ids: SpanContext) -> dict[str, str]:
    """`traceparent`, and `tracestate` where there is one."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(NonRecordingSpan(ids), _NOWHERE))
    return carrier
