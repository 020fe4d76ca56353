"""Early load shedding: the requests that are refused before they are encoded, and those that are not."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime_service.errors import DeadlineExpired, Overloaded
from realtime_service.identity import Identity
from realtime_service.models.registry import Model, Models
from realtime_service.routing.overrides import Policy
from realtime_service.routing.snapshot import Snapshot
from realtime_service.serving import chunked_encoding
from realtime_service.serving.dispatcher import Dispatcher
from realtime_service.serving.request import CallContext, ScoringRequest
from realtime_service.settings import SERVED
from realtime_service.telemetry.metrics import Metrics
from shared_model.encoding import Encoding
from shared_model.types import Priority


class Encoded(Exception):
    """Raised when a text is encoded."""


class Encoder:
    reads = SimpleNamespace(texts=lambda texts, pairs: list(texts))

    def fewest_tokens(self, text: str) -> int:
        return len(text.split())

    def encode(self, text: str) -> None:
        raise Encoded

    def encode_many(self, texts: Sequence[str]) -> None:
        raise Encoded


class Store:
    """A deferral that refuses all."""

    async def accept_refused(self, caller: Identity, request: ScoringRequest, left: float | None) -> None:
        return None


class Chunks:
    """Encodes every text as 100 tokens, and hands the clock on by so many seconds for each call."""

    reads = Encoder.reads

    def __init__(self, clock: "Clock", seconds: float) -> None:
        self.clock = clock
        self.seconds = seconds
        self.texts = 0

    def fewest_tokens(self, text: str) -> int:
        return 1

    def encode_many(self, texts: Sequence[str]) -> list[Encoding]:
        self.clock.now += self.seconds
        self.texts += len(texts)
        return [Encoding(np.ones(100, np.int32), truncated=False)] * len(texts)


@dataclass
class Clock:
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


def dispatcher(busy: bool, seconds: float, epoch: str = "", encoder: Any = Encoder, clock: Any = Clock) -> Dispatcher:
    """A dispatcher with a device that would answer a text of one token after so many seconds, and each longer one after
    as many more."""
    published = SimpleNamespace(epoch=epoch) if epoch else None
    model = Model("r-1", *cast(Any, (None, encoder(), {}, published)))

    def finish_of(model: Model, path: object, tokens: Sequence[int], *_: object) -> float:
        return seconds * (1 + sum(it > 1 for it in tokens))

    device = SimpleNamespace(busy=busy, finish_of=finish_of)
    membership = SimpleNamespace(snapshot=Snapshot("here", lanes=SERVED, policy=Policy()))
    parts: Any = (Models.of(model), device, membership, None, None, Store(), Metrics([]), clock())
    return Dispatcher(*parts)


async def ask(one: Dispatcher, within: float | None, *texts: str) -> None:
    request = ScoringRequest(texts or ("card",), (), Priority.REAL_TIME, within, 3, "", "")
    await one.score(request, CallContext(Identity("addr:x", "addr:x"), None, "/any", b""))


async def test_a_request_that_would_be_late_at_any_length_is_refused_before_encoding() -> None:
    with pytest.raises(Overloaded) as refused:
        await ask(dispatcher(busy=True, seconds=0.100), within=0.050)
    assert refused.value.retry_after == pytest.approx(0.060)


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


async def test_the_time_before_a_handler_started_counts() -> None:
    request = ScoringRequest(("card",), (), Priority.REAL_TIME, 0.080, 3, "", "")
    waited = Clock().now - 0.060
    one = dispatcher(busy=True, seconds=0.010)
    with pytest.raises(Overloaded):
        await one.score(request, CallContext(Identity("addr:x", "addr:x"), None, "/any", b"", arrived=waited))
    # A deadline of the transport is what is left of it, whenever the call came.
    patient = ScoringRequest(("card",), (), Priority.REAL_TIME, None, 3, "", "")
    with pytest.raises(Encoded):
        await one.score(patient, CallContext(Identity("addr:x", "addr:x"), 0.080, "/any", b"", arrived=waited))


LONG = ("card " * 4_000,) * 64


async def test_long_texts_are_refused_by_their_words_before_they_are_encoded() -> None:
    """Also where the device is idle: 65 times 1 ms are more than admission leaves of 50 ms, of 100 ms they are not."""
    with pytest.raises(Overloaded):
        await ask(dispatcher(busy=False, seconds=0.001, clock=Clock), 0.050, *LONG)
    with pytest.raises(Encoded):
        await ask(dispatcher(busy=False, seconds=0.001, clock=Clock), 0.100, *LONG)


async def test_encoding_stops_at_the_deadline() -> None:
    clock = Clock()
    encoder = Chunks(clock, seconds=0.02)
    with pytest.raises(DeadlineExpired):
        await ask(dispatcher(False, 0.0, encoder=lambda: encoder, clock=lambda: clock), 0.050, *LONG)
    assert encoder.texts == 3


async def test_a_request_is_given_up_once_its_first_texts_take_too_long() -> None:
    clock = Clock()
    encoder = Chunks(clock, seconds=0.0)
    with pytest.raises(Overloaded):
        await ask(dispatcher(False, 0.005, encoder=lambda: encoder, clock=lambda: clock), 0.050, *LONG)
    # Seven long texts and the shortest ones take 40 of the 40 ms that admission leaves it.
    assert encoder.texts == 8


@given(st.lists(st.integers(0, 40_000), min_size=1, max_size=64), st.booleans())
async def test_chunks_encode_every_text_once_in_order(lengths: list[int], pairs: bool) -> None:
    one = SimpleNamespace(encode=lambda text: text, encode_many=list)
    texts = [
        ("x" * length, str(number)) if pairs else f"{number}" + "x" * length for number, length in enumerate(lengths)
    ]
    done: list[int] = []
    found = await chunked_encoding.encode(cast(Any, one), texts, lambda some: done.append(len(some)))
    assert found == texts
    assert all(0 < count < len(texts) for count in done)


async def test_an_unexpected_error_is_counted_as_a_failure() -> None:
    one = dispatcher(busy=False, seconds=0.010)
    with pytest.raises(Encoded):
        await ask(one, 0.050)
    labels = {"path": "none", "outcome": "failed", "model": "r"}
    assert one._metrics.registry.get_sample_value("tandem_requests_total", labels) == 1
