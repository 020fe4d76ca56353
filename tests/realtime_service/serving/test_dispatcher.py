"""What is refused before any work is spent on it, and what is not."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from realtime_service.errors import Overloaded
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
    """A text was about to be encoded."""


class Encoder:
    reads = SimpleNamespace(texts=lambda texts, pairs: list(texts))

    def encode(self, text: str) -> None:
        raise Encoded


class Store:
    """Defers nothing."""

    async def accept_refused(self, request: ScoringRequest, left: float | None) -> None:
        return None


def dispatcher(busy: bool, seconds: float, epoch: str = "") -> Dispatcher:
    """On a device that would answer even the shortest text after so many seconds."""
    published = SimpleNamespace(epoch=epoch) if epoch else None
    model = Model("r-1", *cast(Any, (None, Encoder(), {}, published)))
    device = SimpleNamespace(busy=busy, finish_of=lambda *asked: seconds)
    membership = SimpleNamespace(snapshot=Snapshot("here", lanes=SERVED, policy=Policy()))
    parts: Any = (Models.of(model), device, membership, None, None, Store(), Metrics([]), SystemClock())
    return Dispatcher(*parts)


async def ask(one: Dispatcher, within: float | None) -> None:
    request = ScoringRequest(("card",), (), Priority.REAL_TIME, within, 3, "", "")
    await one.score(request, CallContext(str, None, "/any", b""))


async def test_what_would_be_late_even_if_it_were_the_shortest_is_refused_before_it_is_encoded() -> None:
    with pytest.raises(Overloaded) as refused:
        await ask(dispatcher(busy=True, seconds=0.100), within=0.050)
    assert refused.value.retry_after == pytest.approx(0.060, abs=0.020)


@pytest.mark.parametrize(
    ("one", "within"),
    [
        (dispatcher(busy=True, seconds=0.010), 0.050),
        # Nothing waits: what comes starts at once, and what it takes is known when it is encoded.
        (dispatcher(busy=False, seconds=0.100), 0.050),
        # A published score takes no device.
        (dispatcher(busy=True, seconds=0.100, epoch="2026-01-14.1"), 0.050),
        (dispatcher(busy=True, seconds=0.100), None),
    ],
    ids=["in time", "idle", "published", "no deadline"],
)
async def test_whatever_else_comes_is_encoded(one: Dispatcher, within: float | None) -> None:
    with pytest.raises(Encoded):
        await ask(one, within)
