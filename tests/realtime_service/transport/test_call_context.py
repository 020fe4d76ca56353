"""What the service reads from a call beside its request."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from realtime_service.routing.inflight import InflightBytes
from realtime_service.serving.request import CallContext
from realtime_service.transport.authentication import Callers
from realtime_service.transport.call_context import ContextReader
from shared_model.clock import SystemClock
from shared_model.errors import BadInput
from shared_model.types import ServingPath


def received(*metadata: tuple[str, str]) -> CallContext:
    context = SimpleNamespace(invocation_metadata=lambda: metadata, time_remaining=lambda: 2.0, peer=lambda: "ipv4:x:1")
    context_reader = ContextReader(Callers((), SystemClock()), lambda metadata: False, InflightBytes(1000, 500))
    return context_reader.receive("/any", b"", cast(Any, context))


def test_a_call_that_grpc_made_before_is_known_as_repeated() -> None:
    assert received(("grpc-previous-rpc-attempts", "1")).repeated
    assert not received(("x-caller-id", "bot-7")).repeated


def test_a_lane_is_named_by_metadata() -> None:
    assert received(("x-tandem-lane", "latency")).hint is ServingPath.LATENCY
    assert received().hint is None
    with pytest.raises(BadInput, match="'fast' is no lane"):
        received(("x-tandem-lane", "fast"))


def test_a_caller_id_that_would_forge_a_line_is_refused() -> None:
    with pytest.raises(BadInput, match=r"x-caller-id: holds the character U\+202E"):
        received(("x-caller-id", "bot\u202e7"))
