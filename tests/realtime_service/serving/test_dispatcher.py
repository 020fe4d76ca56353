"""Early load shedding: the requests that are refused before they are encoded, and those that are not."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from realtime_service.errors import Overloaded
from realtime_service.identity import Identity
from realtime_service.metrics import Metrics
from realtime_service.models.registry import Model, Models
from realtime_service.routing.overrides import Policy
from realtime_service.routing.snapshot import Snapshot
from realtime_service.serving.dispatcher import Dispatcher
from realtime_service.serving.request import CallContext, ScoringRequest
from realtime_service.settings import SERVED
from shared_model.clock import SystemClock
from shared_model.types import Priority


class Encoded(Exception):
    """Raised when a text is encoded."""


class Encoder:
    reads = SimpleNamespace(texts=lambda texts, pairs: list(texts))

    def encode(self, text: str) -> None:
        raise Encoded


class Store:
    """A deferral that refuses all."""

    async def accept_refused(self, caller: Identity, request: ScoringRequest, left: float | None) -> None:
        return None


def dispatcher(busy: bool, seconds: float, epoch: str = "") -> Dispatcher:
    """A dispatcher with a device that would answer the shortest text after so many seconds."""
    published = SimpleNamespace(epoch=epoch) if epoch else None
    model = Model("r-1", *cast(Any, (None, Encoder(), {}, published)))
    device = SimpleNamespace(busy=busy, finish_of=lambda *asked: seconds)
    membership = SimpleNamespace(snapshot=Snapshot("here", lanes=SERVED, policy=Policy()))
    parts: Any = (Models.of(model), device, membership, None, None, Store(), Metrics([]), SystemClock())
    return Dispatcher(*parts)


async def ask(one: Dispatcher, within: float | None) -> None:
    request = ScoringRequest(("card",), (), Priority.REAL_TIME, within, 3, "", "")
    await one.score(request, CallContext(Identity("addr:x", "addr:x"), None, "/any", b""))


async def test_a_request_that_would_be_late_at_any_length_is_refused_before_encoding() -> None:
    with pytest.raises(Overloaded) as refused:
        await ask(dispatcher(busy=True, seconds=0.100), within=0.050)
    assert refused.value.retry_after == pytest.approx(0.060, abs=0.020)


@pytest.mark.parametrize(
    ("one", "within"),
    [
        (dispatcher(busy=True, seconds=0.010), 0.050),
        # No task is queued: a request starts at once, and is admitted or refused after encoding.
        (dispatcher(busy=False, seconds=0.100), 0.050),
        # A published score needs no device.
        (dispatcher(busy=True, seconds=0.100, epoch="2026-01-14.1"), 0.050),
        (dispatcher(busy=True, seconds=0.100), None),
    ],
    ids=["in time", "idle", "published", "no deadline"],
)
async def test_other_requests_are_encoded(one: Dispatcher, within: float | None) -> None:
    with pytest.raises(Encoded):
        await ask(one, within)
