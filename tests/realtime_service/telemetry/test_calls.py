"""Whether a call has a span is decided once: by its caller, by the first replica, or here."""

import contextlib
from collections.abc import Iterator

import pytest

from realtime_service.telemetry.calls import NO_TRACER, CallTracer
from shared_model.tracing.tracer import Tracer
from tests import otlp

METHOD = "/scoring.v1.ScoringService/Score"
UNSAMPLED = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[CallTracer]:
    """Of a replica that samples every call that is not decided yet."""
    with otlp.collecting() as collector:
        for name, value in collector.environment().items():
            monkeypatch.setenv(name, value)
        tracer = Tracer("test", lambda count: None)
        yield CallTracer(tracer)
        tracer.close()


def has_span(calls: CallTracer, *metadata: tuple[str, str | bytes], forwarded: bool = False) -> bool:
    held = contextlib.nullcontext()
    serving = calls.traced(METHOD, metadata, held, forwarded=forwarded, arrived=None)
    with serving:
        return serving is not held


def test_a_replica_decides_on_a_call_of_a_client_alone(calls: CallTracer) -> None:
    assert has_span(calls)
    assert not has_span(calls, forwarded=True)
    assert not has_span(calls, UNSAMPLED)
    assert not has_span(calls, UNSAMPLED, forwarded=True)
    assert not has_span(NO_TRACER)


def test_submitted_work_has_a_span_where_its_submission_had_one(calls: CallTracer) -> None:
    sampled = UNSAMPLED[1][:-1] + "1"
    kinds = [type(calls.resumed(it)) for it in ("", UNSAMPLED[1], sampled)]
    assert kinds[:2] == [contextlib.nullcontext] * 2
    assert kinds[2] is not contextlib.nullcontext
