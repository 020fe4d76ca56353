"""Traces: off without an endpoint, sampled once, continued by headers and variables, and never in the way."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared_model import tracing
from shared_model.errors import SettingError
from shared_model.tracing import Kind, export, tracer
from shared_model.tracing.export import MOST_WAITING, Losses
from shared_model.tracing.tracer import Span, Tracer
from tests import otlp
from tests.otlp import Collector
from tests.realtime_service.conftest import eventually

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with otlp.collecting() as made:
        yield made


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("OTEL_", "TRACE"))]:
        monkeypatch.delenv(name)


def sending(monkeypatch: pytest.MonkeyPatch, collector: Collector, **more: str) -> None:
    for name, value in collector.environment(**more).items():
        monkeypatch.setenv(name, value)


def first(made: Tracer, carrier: Mapping[str, str] = MappingProxyType({})) -> Span | None:
    """The first span of a trace, if it is sampled."""
    sampled = made.sampled("call", carrier)
    return made.begin(sampled) if sampled else None


def end_one(made: Tracer) -> None:
    span = first(made)
    assert span
    span.end()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, "http://c:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": ""}, "http://c:4318"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "otlp_proto_http"}, "http://c:4318"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            "http://c:4318",
        ),
    ],
)
def test_tracing_is_on_where_an_endpoint_is_set(variables: dict[str, str], expected: str) -> None:
    assert tracing.endpoint(variables) == expected


def test_another_protocol_is_named_in_one_line() -> None:
    with pytest.raises(SettingError, match="OTEL_EXPORTER_OTLP_PROTOCOL='grpc': expected http/protobuf"):
        tracing.endpoint({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


@pytest.mark.heavy
def test_without_an_endpoint_nothing_of_opentelemetry_is_imported() -> None:
    # redis-py imports what it finds of the metrics.
    program = (
        "import sys; from realtime_service.client import Client; from shared_model import tracing; "
        "assert not tracing.start('x'); print([it for it in sys.modules if it.startswith('opentelemetry')]); "
        "from realtime_service.process import server, calls; from batch_job import attempt; "
        "print([it for it in sys.modules if it.startswith(('opentelemetry.exporter', 'opentelemetry.proto'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"


def test_without_the_packages_a_program_says_so_and_runs_untraced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for name in [name for name in sys.modules if name.startswith(("opentelemetry.", "shared_model.tracing."))]:
        monkeypatch.delitem(sys.modules, name)
    assert tracing.start("x") is None
    assert "opentelemetry is not installed: nothing is traced" in caplog.text


def test_a_tenth_is_sampled_and_the_others_have_no_span(monkeypatch: pytest.MonkeyPatch, collector: Collector) -> None:
    sending(monkeypatch, collector, OTEL_TRACES_SAMPLER="parentbased_traceidratio", OTEL_TRACES_SAMPLER_ARG="0.1")
    made = Tracer("test", lambda count: None)
    begun = [first(made) for _ in range(2000)]
    sampled = [span for span in begun if span]
    # Within five standard deviations.
    assert 133 < len(sampled) < 267
    for span in sampled:
        span.end()
    made.close()
    assert len({it.trace for it in collector.spans}) == len(sampled)
    # Other services that sample by the same ratio decide the same of these traces.
    assert all(int(it.trace[16:], 16) < 0.1 * 2**64 for it in collector.spans)


@pytest.mark.parametrize("sampler", ["parentbased_always_on", "parentbased_always_off"])
def test_the_decision_of_the_caller_is_kept(
    monkeypatch: pytest.MonkeyPatch, collector: Collector, sampler: str
) -> None:
    sending(monkeypatch, collector, OTEL_TRACES_SAMPLER=sampler, OTEL_SERVICE_NAME="mine")
    made = Tracer("test", lambda count: None)
    assert made.sampled("call", {"traceparent": SAMPLED[:-1] + "0"}) is None
    span = first(made, {"traceparent": SAMPLED, "tracestate": "vendor=1"})
    assert span
    assert tracer.headers(made.child(span, "part").ids)["tracestate"] == "vendor=1"
    span.end()
    made.close()
    [received] = collector.spans
    assert (received.trace, received.parent, received.service) == (TRACE, SPAN, "mine")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{'g' * 32}-{SPAN}-01",
        "00-" + "1" * 100_000,
        f"{SAMPLED},{SAMPLED}",
        f"00-{TRACE}-{SPAN}-é1",
        "\x00" * 55,
    ],
)
def test_a_malformed_header_counts_as_absent(
    monkeypatch: pytest.MonkeyPatch, collector: Collector, header: str
) -> None:
    """It decides nothing: not by a sampler that only follows callers."""
    sending(monkeypatch, collector, OTEL_TRACES_SAMPLER="parentbased_always_off")
    made = Tracer("test", lambda count: None)
    assert made.sampled("call", {"traceparent": header, "tracestate": "=" * 1000}) is None
    made.close()
    assert not collector.spans


def test_a_program_continues_the_trace_of_its_parent_and_tells_its_children(
    monkeypatch: pytest.MonkeyPatch, collector: Collector
) -> None:
    sending(monkeypatch, collector, TRACEPARENT=SAMPLED)
    told = []

    def step() -> None:
        with tracing.program("step", "night") as ended:
            told.append(os.environ["TRACEPARENT"])
            with tracing.stage("read", files=2):
                tracing.past("shards", 10.0, 11.5, rows=7)
            ended(3)
            with tracing.stage("score"), tracing.redis_call("EVALSHA", "claim"):
                raise ZeroDivisionError("a text of a user")

    with pytest.raises(ZeroDivisionError):
        step()
    assert os.environ["TRACEPARENT"] == SAMPLED
    assert tracing.current() is None
    found = {span.name: span for span in collector.spans}
    of_step = found["step"]
    assert (of_step.trace, of_step.parent, of_step.attributes) == (TRACE, SPAN, {"process.exit.code": 3})
    assert told == [f"00-{TRACE}-{of_step.id}-01"]
    assert {found[it].parent for it in ("read", "score")} == {of_step.id}
    assert found["read"].attributes == {"tandem.files": 2}
    shards = found["shards"]
    assert (shards.parent, shards.began, shards.ended) == (found["read"].id, 10 * 10**9, 115 * 10**8)
    redis = found["EVALSHA claim"]
    assert (redis.kind, redis.parent, redis.failed) == ("CLIENT", found["score"].id, True)
    assert redis.attributes["error.type"] == "ZeroDivisionError"
    assert b"text of a user" not in collector.raw


def encoded(*spans: ReadableSpan) -> ResourceSpans:
    """Without the ids of their own, which are random."""
    [resource] = encode_spans(spans).resource_spans
    for number, span in enumerate(resource.scope_spans[0].spans):
        span.span_id = bytes([number])
    return resource


@pytest.mark.parametrize("flags", ["00", "01", "02", "03"])
@pytest.mark.parametrize("state", ["", "vendor=1"])
def test_a_span_is_exported_as_the_sdks_own_would_be(
    monkeypatch: pytest.MonkeyPatch, collector: Collector, flags: str, state: str
) -> None:
    sending(monkeypatch, collector, OTEL_TRACES_SAMPLER="always_on")
    carrier = {"traceparent": f"00-{TRACE}-{SPAN}-{flags}", "tracestate": state}
    made, attributes = Tracer("test", lambda count: None), {"rows": 2, "share": 0.5, "late": True, "path": "latency"}
    sampled = made.sampled("call", carrier, Kind.SERVER)
    assert sampled
    span = made.begin(sampled, 10, attributes)
    other = made.begin(sampled)
    child = made.child(span, "batch", start=15, links=[other])
    child.fail(ZeroDivisionError("a text of a user"))
    child.end(18)
    span.end(20)
    made.close()

    provider = TracerProvider(resource=made.resource, shutdown_on_exit=False)
    context = TraceContextTextMapPropagator().extract(carrier)
    own = provider.get_tracer("tandem").start_span("call", context, SpanKind.SERVER, attributes, start_time=10)
    below = trace.set_span_in_context(own, context)
    part = provider.get_tracer("tandem").start_span("batch", below, links=[Link(other.ids)], start_time=15)
    part.set_attribute("error.type", "ZeroDivisionError")
    part.set_status(Status(StatusCode.ERROR))
    part.end(18)
    own.end(20)
    theirs, ours = encoded(own, part), encoded(span, child)
    ours.scope_spans[0].spans[1].parent_span_id = theirs.scope_spans[0].spans[1].parent_span_id
    assert ours == theirs
    for mine, its in ((span, own), (child, part)):
        assert mine.ids.trace_flags == its.get_span_context().trace_flags
    assert child.parent is span.ids


def test_the_first_span_of_a_trace_has_the_flags_of_the_sdks_own(
    monkeypatch: pytest.MonkeyPatch, collector: Collector
) -> None:
    sending(monkeypatch, collector)
    made = Tracer("test", lambda count: None)
    span = first(made)
    made.close()
    assert span
    own = TracerProvider(shutdown_on_exit=False).get_tracer("tandem").start_span("call")
    assert (span.parent, span.ids.trace_flags) == (None, own.get_span_context().trace_flags)


def test_the_children_of_a_program_that_is_not_sampled_are_not_either(
    monkeypatch: pytest.MonkeyPatch, collector: Collector
) -> None:
    sending(monkeypatch, collector, OTEL_TRACES_SAMPLER="always_off")
    with tracing.program("step", "night"), tracing.stage("read"):
        assert os.environ["TRACEPARENT"].endswith("-00")
    assert "TRACEPARENT" not in os.environ
    assert not collector.spans


def test_a_collector_that_hangs_delays_nothing_and_its_losses_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, dropped = threading.Event(), list[int]()
    with otlp.collecting(answers) as hanging:
        sending(monkeypatch, hanging)
        made = Tracer("test", dropped.append)
        began, count = time.monotonic(), 3 * MOST_WAITING
        for _ in range(count):
            end_one(made)
        # Not the time-out of an export, which is ten seconds.
        assert time.monotonic() - began < 8
        assert sum(dropped) == count - MOST_WAITING
        answers.set()
        eventually(lambda: len(hanging.spans) == MOST_WAITING)
        # There is room again.
        end_one(made)
        eventually(lambda: len(hanging.spans) == MOST_WAITING + 1)
        answers.clear()
        end_one(made)
        began = time.monotonic()
        made.close()
        assert time.monotonic() - began < 4
        answers.set()
    assert sum(dropped) == count - MOST_WAITING


def test_a_collector_that_is_down_is_one_line_with_its_address_and_the_end_is_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with otlp.collecting() as gone:
        # All at once, at the end.
        sending(monkeypatch, gone, OTEL_BSP_SCHEDULE_DELAY="60000")
    dropped = list[int]()
    made = Tracer("test", dropped.append)
    for _ in range(3):
        end_one(made)
    began = time.monotonic()
    made.close()
    assert time.monotonic() - began < tracer._CLOSING_SECONDS + 3
    assert sum(dropped) == 3
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith(f"3 spans were dropped: {gone.url}/v1/traces: ")
    assert "refused" in line


def test_losses_are_logged_once_a_minute_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    now, dropped = [100.0], list[int]()
    losses = Losses(dropped.append, lambda: now[0])
    for seconds in (0.0, 1.0, 58.0, 1.0):
        now[0] += seconds
        losses.add(5, "down")
    assert [it.getMessage() for it in caplog.records] == [f"{count} spans were dropped: down" for count in (5, 15)]
    assert dropped == [5] * 4
    assert export.LOG_SECONDS == 60.0
