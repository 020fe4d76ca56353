"""Spans of one process: which are sampled, whose children they are, and their export."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared_model.tracing import ERROR_TYPE, Attributes, Kind
from shared_model.tracing.export import BoundedProcessor, Losses

#: Longest wait for the last spans when the process ends, and then for an export that has failed and would be tried
#: again.
_CLOSING_SECONDS, _GIVING_UP_SECONDS = 2.0, 0.5
_NOWHERE = Context()
_KINDS = {kind: SpanKind[kind.name] for kind in Kind}
_PROPAGATOR = TraceContextTextMapPropagator()
#: Of all spans, equal to that of `get_tracer`.
_SCOPE = InstrumentationScope("tandem", "", "", {})


class _DecidedIds(RandomIdGenerator, threading.local):
    """Gives a trace the id by which it was sampled."""

    decided = 0

    def generate_trace_id(self) -> int:
        return self.decided


class Sampled(NamedTuple):
    """A trace that is recorded, and its first span here."""

    name: str
    kind: SpanKind
    parent: Context
    trace_id: int


class Tracer:
    """Whether a trace is recorded is decided once, before it has a span: one that is not sampled has none."""

    def __init__(self, service: str, dropped: Callable[[int], object]) -> None:
        """As `tracing.start`. The sampler, the exporter and its queue read their variables themselves."""
        self._ids, self._random = _DecidedIds(), RandomIdGenerator()
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler
        self._resource = Resource.create({"service.name": service}).merge(OTELResourceDetector().detect())
        self._processor = BoundedProcessor(Losses(dropped))
        self._provider = TracerProvider(ALWAYS_ON, self._resource, shutdown_on_exit=False, id_generator=self._ids)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer(_SCOPE.name)

    def sampled(self, name: str, carrier: Mapping[str, str], kind: Kind = Kind.INTERNAL) -> Sampled | None:
        """Decides whether a trace is recorded, of which this process begins its first span; None where it is not.
        `carrier`: the headers of the span before it, if any; what is malformed counts as absent."""
        parent = _PROPAGATOR.extract(carrier, _NOWHERE) if carrier else _NOWHERE
        above = trace.get_current_span(parent).get_span_context() if carrier else trace.INVALID_SPAN_CONTEXT
        trace_id = above.trace_id if above.is_valid else self._random.generate_trace_id()
        decided = self._sampler.should_sample(parent, trace_id, name, _KINDS[kind])
        if decided.decision is not Decision.RECORD_AND_SAMPLE:
            return None
        return Sampled(name, _KINDS[kind], parent, trace_id)

    def begin(
        self,
        sampled: Sampled,
        start: int | None = None,
        attributes: Attributes | None = None,
        links: Sequence[Span] = (),
    ) -> Span:
        """The first span of this process in a trace. `start`: nanoseconds since 1970."""
        name, kind, parent, self._ids.decided = sampled
        linked = [Link(it.get_span_context()) for it in links]
        return self._tracer.start_span(name, parent, kind, attributes, linked, start_time=start)

    def child(
        self,
        parent: Span,
        name: str,
        kind: Kind = Kind.INTERNAL,
        attributes: Attributes | None = None,
    ) -> Span:
        above = trace.set_span_in_context(parent, _NOWHERE)
        return self._tracer.start_span(name, above, _KINDS[kind], attributes)

    def record(
        self,
        parent: SpanContext,
        name: str,
        start: int,
        end: int,
        attributes: Attributes,
        links: Sequence[SpanContext] = (),
        failure: BaseException | None = None,
    ) -> SpanContext:
        """A child that has ended, at a seventh of the cost of one that begins and ends. `start`, `end`: nanoseconds
        since 1970; `failure`: as in `tracing.fail`."""
        own = self._random.generate_span_id()
        context = SpanContext(parent.trace_id, own, False, parent.trace_flags, parent.trace_state)
        status = Status()
        if failure:
            attributes, status = {**attributes, ERROR_TYPE: type(failure).__qualname__}, Status(StatusCode.ERROR)
        span = ReadableSpan(
            name,
            context,
            parent,
            self._resource,
            attributes,
            links=list(map(Link, links)),
            status=status,
            start_time=start,
            end_time=end,
            instrumentation_scope=_SCOPE,
        )
        self._processor.on_end(span)
        return context

    def carried(self, span: Span | None, received: Mapping[str, str]) -> dict[str, str]:
        """The headers by which another process continues a trace. `span`: None where it is not sampled, `received`: the
        headers that it came with: without any, the other process would decide again."""
        if span is None:
            if received:
                return dict(received)
            ids = self._random.generate_trace_id(), self._random.generate_span_id()
            span = NonRecordingSpan(SpanContext(*ids, is_remote=False, trace_flags=TraceFlags(TraceFlags.DEFAULT)))
        return headers(span)

    def close(self) -> None:
        """Export what is left, for a moment at most."""
        # In a thread that ends with the process: a collector that takes the connection and does not answer holds it.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSING_SECONDS)
        if closing.is_alive():
            self._processor.give_up()
            closing.join(_GIVING_UP_SECONDS)


def headers(span: Span) -> dict[str, str]:
    """`traceparent`, and `tracestate` where there is one."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, _NOWHERE))
    return carrier
