"""Traces of real processes, as a collector gets them: client → router → replica → queue → batch → engine."""

import json
import secrets
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from prometheus_client.openmetrics import parser

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from realtime_service.client import Client
from shared_model.redis_store.server import RedisServer
from shared_model.types import Priority
from tests import otlp
from tests.otlp import Collector, Received
from tests.realtime_service.conftest import RunningService, eventually, start_service

SERVICE = "scoring.v1.ScoringService"
SCORE, SUBMIT = f"{SERVICE}/Score", f"{SERVICE}/Submit"
TEXT = "my card has not arrived"
SPAN = "b7ad6b7169203331"


@pytest.fixture(scope="module")
def router(
    service: RunningService,
    releases_dir: Path,
    redis_server: RedisServer,
    collector: Collector,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningService]:
    settings = {"TANDEM_LANES": "none", "TANDEM_HTTP_ADDRESS": "127.0.0.1:0", "REDIS_URL": redis_server.url}
    traced = collector.environment(OTEL_TRACES_SAMPLER="parentbased_always_off", OTEL_SERVICE_NAME="router")
    running = start_service(tmp_path_factory.mktemp("router"), releases_dir, **settings, **traced)
    yield running
    assert running.stop() == 0


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch, collector: Collector) -> Iterator[trace.Tracer]:
    """A program that calls, with OpenTelemetry as its own."""
    provider = TracerProvider(resource=Resource({"service.name": "application"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{collector.url}/v1/traces")))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield provider.get_tracer("test")
    provider.shutdown()


def sampled(flag: str = "01") -> tuple[str, str]:
    """A new trace, and the header of one who calls in it."""
    made = secrets.token_hex(16)
    return made, f"00-{made}-{SPAN}-{flag}"


def call(address: str, traceparent: str, text: str = TEXT, **fields: object) -> scoring_pb2.ScoreResponse:
    with grpc.insecure_channel(address) as channel:
        request = scoring_pb2.ScoreRequest(texts=[text], priority=scoring_pb2.REAL_TIME, **fields)  # type: ignore[arg-type]
        metadata = [("traceparent", traceparent)] if traceparent else []
        answer: scoring_pb2.ScoreResponse = ScoringServiceStub(channel).Score(request, timeout=20, metadata=metadata)
        return answer


def named(spans: list[Received], name: str, kind: str) -> Received:
    [found] = [span for span in spans if (span.name, span.kind) == (name, kind)]
    return found


def test_a_call_is_one_trace_from_the_program_to_the_engine(
    router: RunningService, collector: Collector, application: trace.Tracer
) -> None:
    with application.start_as_current_span("application") as root, Client(router.address, caller_id="me") as client:
        answer = client.score(TEXT, priority=Priority.REAL_TIME)
    found = format(root.get_span_context().trace_id, "032x")
    spans = collector.until(found, {"engine", "batch", "queue", "application"}, lambda them: len(them) == 8)
    own = [span for span in spans if span.service == "application"]
    of_router = [span for span in spans if span.service == "router"]
    of_replica = [span for span in spans if span.service == "tandem"]
    chain = [
        named(own, "application", "INTERNAL"),
        named(own, SCORE, "CLIENT"),
        named(of_router, SCORE, "SERVER"),
        named(of_router, SCORE, "CLIENT"),
        named(of_replica, SCORE, "SERVER"),
        named(of_replica, "batch", "INTERNAL"),
        named(of_replica, "engine", "INTERNAL"),
    ]
    assert [span.parent for span in chain] == ["", *(span.id for span in chain[:-1])]
    served, batch, engine = chain[4:]
    queue = named(of_replica, "queue", "INTERNAL")
    assert (queue.parent, queue.links, batch.links) == (served.id, (batch.id,), (served.id,))
    assert served.began <= queue.began <= queue.ended <= engine.began < engine.ended <= served.ended
    for span in chain[1:5]:
        assert span.attributes["rpc.system"] == "grpc"
        assert (span.attributes["rpc.service"], span.attributes["rpc.method"]) == (SERVICE, "Score")
        assert (span.attributes["rpc.grpc.status_code"], span.failed) == (0, False)
    tokens = answer.results[0].tokens
    expected = {"path": "latency", "release": answer.release, "texts": 1, "tokens": tokens, "batch.rows": 1}
    assert expected.items() <= {name[7:]: value for name, value in served.attributes.items()}.items()
    expected = {"lane": "latency", "release": answer.release, "precision": "int8", "batch.rows": 1}
    assert expected.items() <= {name[7:]: value for name, value in batch.attributes.items()}.items()
    assert batch.attributes["tandem.batch.tokens"] >= tokens
    assert not any(span.events for span in spans)


def test_a_call_over_http_continues_the_trace_of_its_caller(router: RunningService, collector: Collector) -> None:
    made, traceparent = sampled()
    body = json.dumps({"texts": [TEXT], "priority": "REAL_TIME"}).encode()
    headers = {"content-type": "application/json", "traceparent": traceparent}
    with urllib.request.urlopen(urllib.request.Request(f"{router.http}/v1/score", body, headers)) as page:  # noqa: S310
        assert page.status == 200
    spans = collector.until(made, {"POST /v1/score", "engine", "batch"}, lambda them: len(them) == 6)
    first = named(spans, "POST /v1/score", "SERVER")
    assert (first.parent, first.service) == (SPAN, "router")
    expected = {"http.request.method": "POST", "http.route": "/v1/score", "http.response.status_code": 200}
    assert expected.items() <= first.attributes.items()
    assert named(spans, SCORE, "CLIENT").parent == first.id


def test_a_refusal_is_in_its_span_and_is_no_failure(router: RunningService, collector: Collector) -> None:
    made, traceparent = sampled()
    with pytest.raises(grpc.RpcError) as refused:
        call(router.address, traceparent, release="no-such-release")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    [span] = collector.until(made, {SCORE})
    assert (span.attributes["rpc.grpc.status_code"], span.failed) == (3, False)
    assert span.attributes["tandem.outcome"] == "invalid"


def test_what_is_not_sampled_has_no_span_on_any_hop(router: RunningService, collector: Collector) -> None:
    known = {span.trace for span in collector.spans}
    _, unsampled = sampled("00")
    for traceparent in (unsampled, "", "00-malformed-01"):
        call(router.address, traceparent)
    last, traceparent = sampled()
    call(router.address, traceparent)
    collector.until(last, {SCORE, "engine"}, lambda them: len(them) == 6)
    assert {span.trace for span in collector.spans} - known == {last}


def test_work_that_is_submitted_goes_on_in_its_trace(router: RunningService, collector: Collector) -> None:
    made, traceparent = sampled()
    request = scoring_pb2.SubmitRequest(request=scoring_pb2.ScoreRequest(texts=[TEXT], request_id=f"later-{made}"))
    with grpc.insecure_channel(router.address) as channel:
        ScoringServiceStub(channel).Submit(request, timeout=20, metadata=[("traceparent", traceparent)])
    spans = collector.until(made, {SUBMIT, "EVALSHA submit", "process deferred", "batch", "queue"})
    submitted = named(spans, SUBMIT, "SERVER")
    stored = named(spans, "EVALSHA submit", "CLIENT")
    assert (submitted.parent, stored.parent) == (SPAN, submitted.id)
    assert (stored.attributes["db.system.name"], stored.attributes["db.operation.name"]) == ("redis", "EVALSHA")
    processed = named(spans, "process deferred", "CONSUMER")
    assert (processed.service, processed.parent, processed.attributes["messaging.system"]) == (
        "tandem",
        submitted.id,
        "redis",
    )
    assert named(spans, "batch", "INTERNAL").links == (processed.id,)
    assert named(spans, "batch", "INTERNAL").attributes["tandem.lane"] == "deferred"


def test_no_text_is_in_a_span(router: RunningService, collector: Collector) -> None:
    """Nor in the line of an error that quotes what the caller sent."""
    made, traceparent = sampled()
    call(router.address, traceparent, "xyzzy plugh", request_id="id-of-a-user")
    with pytest.raises(grpc.RpcError):
        call(router.address, traceparent, "xyzzy plugh", model="xyzzy plugh")
    collector.until(made, {SCORE, "engine"}, lambda them: len(them) == 7)
    raw = bytes(collector.raw)
    assert b"xyzzy" not in raw
    assert b"card has not" not in raw
    assert b"id-of-a-user" not in raw


def test_a_latency_of_a_sampled_call_names_its_trace(service: RunningService) -> None:
    made, traceparent = sampled()
    call(service.address, traceparent)
    accept = {"accept": "application/openmetrics-text"}
    with urllib.request.urlopen(urllib.request.Request(f"{service.metrics}/metrics", headers=accept)) as page:  # noqa: S310
        families = {it.name: it.samples for it in parser.text_string_to_metric_families(page.read().decode())}
    for name in ("tandem_request_seconds", "tandem_queue_seconds"):
        exemplars = [it.exemplar.labels for it in families[name] if it.exemplar and it.labels["path"] == "latency"]
        assert made in {labels["trace_id"] for labels in exemplars}


@pytest.fixture(scope="module")
def alone(
    service: RunningService, releases_dir: Path, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[tuple[RunningService, Path]]":
    """A router that traces every call to a collector that is gone, with a quota; and its log, of JSON."""
    with otlp.collecting() as gone:
        traced = gone.environment(OTEL_EXPORTER_OTLP_TIMEOUT="1")
    settings = {
        "TANDEM_LANES": "none",
        "REDIS_URL": redis_server.url,
        "TANDEM_QUOTA": "1000",
        "TANDEM_LOG_FORMAT": "json",
    }
    folder = tmp_path_factory.mktemp("alone")
    running = start_service(folder, releases_dir, log=folder / "log", **settings, **traced)
    yield running, folder / "log"
    assert running.stop() == 0


def test_calls_do_not_notice_a_collector_that_is_down(alone: tuple[RunningService, Path]) -> None:
    running, log = alone

    def dropped() -> float:
        with urllib.request.urlopen(f"{running.metrics}/metrics") as page:  # noqa: S310 - of this host
            lines = page.read().decode().splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith("tandem_spans_dropped_total "))

    def told() -> int:
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return sum(line["level"] == "WARNING" and "spans were dropped" in line["message"] for line in lines)

    for _ in range(5):
        assert call(running.address, "").results
    # A span of the call, and one of its hop. They are counted before the log tells of them.
    eventually(lambda: dropped() >= 10 and told())
    assert told() == 1


def test_refusals_are_a_line_a_second_with_the_ids_of_one(alone: tuple[RunningService, Path]) -> None:
    running, log = alone
    made, traceparent = sampled()
    metadata = [("traceparent", traceparent), ("x-caller-id", "a-bot")]
    codes, began = list[grpc.StatusCode](), time.monotonic()

    def lines() -> list[dict[str, object]]:
        read = [json.loads(line) for line in log.read_text().splitlines()]
        return [line for line in read if line["message"].startswith("refused: the caller is over its quota")]

    def refused_in_a_span() -> list[dict[str, object]]:
        # A call of a caller that is far over its quota is refused before it has a span.
        for number in range(40):
            request = scoring_pb2.ScoreRequest(texts=[TEXT] * 64, request_id=f"r-{number}", release="no-such-release")
            with pytest.raises(grpc.RpcError) as refused:
                stub.Score(request, timeout=20, metadata=metadata)
            codes.append(refused.value.code())
        return [line for line in lines() if line.get("trace_id") == made]

    with grpc.insecure_channel(running.address) as channel:
        stub = ScoringServiceStub(channel)
        eventually(refused_in_a_span)
    assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) > 10
    assert len(lines()) <= time.monotonic() - began + 2
    line = next(line for line in lines() if line.get("trace_id") == made)
    assert (line["caller"], line["code"]) == ("claimed:a-bot", "RESOURCE_EXHAUSTED")
    assert str(line["request_id"]).startswith("r-")
    assert line["reason"] == "the caller is over its quota of 1000 texts a second"
