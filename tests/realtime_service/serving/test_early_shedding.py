"""What is refused on a look at its message would be refused by the dispatcher as well; what is not plain goes there."""

import asyncio
import dataclasses
import gc
import math
import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from protos.scoring.v1 import scoring_pb2
from realtime_service.cluster.forwarded_context import ForwardedContext
from realtime_service.errors import Overloaded
from realtime_service.identity import Identity
from realtime_service.models.registry import Model, Models
from realtime_service.routing.overrides import Policy
from realtime_service.routing.quotas import Quotas
from realtime_service.routing.snapshot import Option, Snapshot
from realtime_service.serving.dispatcher import Dispatcher
from realtime_service.serving.request import CallContext, RequestContext, check_request
from realtime_service.settings import SERVED
from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import SimulatedClock
from shared_model.types import ServingPath

CALLER = Identity("addr:x", "addr:x")
BEGIN = SimulatedClock().monotonic()


class Encoded(Exception):
    """The dispatcher has let a request through to its encoder."""


class Encoder:
    reads = SimpleNamespace(texts=lambda texts, pairs: list(texts))

    def fewest_tokens(self, text: str) -> int:
        return len(text.split())

    def encode(self, text: str) -> None:
        raise Encoded

    encode_many = encode


class Tokenizer(Encoder):
    """Encodes each text as itself."""

    def encode(self, text: str) -> Any:
        return text

    def key(self, encoding: str) -> str:
        return encoding


class Store:
    """A deferral that refuses all."""

    async def accept_refused(self, *_: object) -> None:
        return None


def dispatcher(
    finishes: dict[ServingPath, float],
    clock: SimulatedClock,
    *,
    busy: bool = True,
    epoch: str = "",
    others: Any = None,
    quota: float = 0.0,
    release: str = "r-1",
) -> Dispatcher:
    """`finishes`: seconds of a new clock at which each lane would answer a text of one token; each more takes a
    millisecond. `others`: lanes of other replicas."""
    published = SimpleNamespace(epoch=epoch, may_have=lambda key: key == "card") if epoch else None
    model = Model(release, *cast(Any, (None, Tokenizer() if epoch else Encoder(), {}, published)))

    def finish_of(
        model: Model, path: ServingPath, tokens: Sequence[int], *_: object, at_least: bool = False
    ) -> float | None:
        alone = 0.001 * sum(it - 1 for it in tokens)
        return max(0.0, finishes[path] - clock.monotonic() + BEGIN) + alone if path in finishes else None

    device = SimpleNamespace(busy=busy, finish_of=finish_of, per_text=lambda *_: 0.002)
    snapshot = Snapshot("here", lanes=SERVED, policy=Policy(quota=quota), **({"options": others} if others else {}))
    membership = SimpleNamespace(snapshot=snapshot)
    parts: Any = (Models.of(model), device, membership, None, Quotas(snapshot), Store(), Metrics([]), clock)
    return Dispatcher(*parts)


FINISHES = st.fixed_dictionaries({}, optional={path: st.floats(0.001, 0.5) for path in SERVED})
MESSAGES = st.builds(
    lambda timeout, texts, priority: scoring_pb2.ScoreRequest(
        texts=["card " * words for words in texts], timeout_ms=timeout, priority=priority
    ),
    st.integers(0, 600),
    st.lists(st.integers(1, 300), min_size=1, max_size=3),
    st.sampled_from([scoring_pb2.PRIORITY_UNSPECIFIED, scoring_pb2.REAL_TIME, scoring_pb2.BATCH]),
)


#: Of another replica.
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        ("r-1", path): st.builds(
            lambda finish, room, path=path: (Option("b", path, finish, 0.001, 0.5, room=room),),
            st.floats(0.001, 0.5),
            st.sampled_from([0, math.inf]),
        )
        for path in SERVED
    },
)


@given(FINISHES, MESSAGES, st.floats(0, 0.5), OPTIONS)
def test_nothing_is_refused_that_the_dispatcher_would_let_through(
    finishes: dict[ServingPath, float], message: scoring_pb2.ScoreRequest, waited: float, others: Any
) -> None:
    clock = SimulatedClock()
    one, arrived = dispatcher(finishes, clock, others=others), clock.monotonic() - waited
    status = one.early_shedding.refusal(message, CALLER, arrived)
    call = CallContext(CALLER, None, "/any", b"", arrived=arrived)
    if status is not None:
        assert status.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert status.retry_after is not None
        with pytest.raises(Overloaded):
            asyncio.run(one.score(check_request(message), call))


@dataclasses.dataclass(frozen=True)
class Looked:
    """A call that is looked at, `gap` seconds after the one before."""

    message: scoring_pb2.ScoreRequest
    waited: float
    gap: float
    ahead: int
    caller: Identity


#: Calls that are much the same, and in time or late by little.
LOOKS = st.builds(
    Looked,
    st.builds(
        lambda timeout, words: message(texts=["card " * words], timeout_ms=timeout),
        st.sampled_from([80, 90]),
        st.integers(1, 8),
    ),
    st.integers(0, 20).map(lambda ms: ms / 1000),
    st.integers(0, 3).map(lambda ms: ms / 1000),
    st.integers(0, 4),
    st.sampled_from([CALLER, Identity("addr:y", "addr:y", lanes=frozenset({ServingPath.DYNAMIC}))]),
)


@given(
    # No finish is the last one in time of any call: rounding would decide.
    st.fixed_dictionaries(
        {ServingPath.DYNAMIC: st.integers(50, 90).map(lambda ms: ms / 1000 + 0.00037)},
        optional={ServingPath.LATENCY: st.integers(50, 90).map(lambda ms: ms / 1000 + 0.00037)},
    ),
    st.lists(LOOKS, min_size=2, max_size=12),
    st.just({}) | OPTIONS,
)
def test_each_look_finds_what_it_would_find_without_those_before(
    finishes: dict[ServingPath, float], looks: list[Looked], others: Any
) -> None:
    clock = SimulatedClock()
    one = dispatcher(finishes, clock, others=others)
    for look in looks:
        clock.advance(look.gap)
        call = (look.message, look.caller, clock.monotonic() - look.waited, look.ahead)
        by_itself = dispatcher(finishes, clock, others=others).early_shedding.refusal(*call)
        assert (one.early_shedding.refusal(*call) is None) is (by_itself is None)


def late() -> tuple[Dispatcher, float]:
    """A dispatcher whose lanes take 200 ms, and when a call came just now."""
    clock = SimulatedClock()
    return dispatcher(dict.fromkeys(SERVED, 0.2), clock), clock.monotonic()


def message(**fields: Any) -> scoring_pb2.ScoreRequest:
    return scoring_pb2.ScoreRequest(**{"texts": ["card"], "timeout_ms": 80, **fields})


def test_a_call_that_no_lane_would_answer_in_time_is_refused_and_counted() -> None:
    one, arrived = late()
    status = one.early_shedding.refusal(message(), CALLER, arrived)
    assert status is not None
    # 80 ms, less the margin of 16.
    assert status.retry_after == pytest.approx(0.136)
    written = generate_latest(one._metrics.registry).decode()
    assert 'outcome="refused",path="latency"} 1.0' in written
    assert one._models.serving.models["r-1"].statistics.failed.count == 1


@pytest.mark.parametrize(
    ("after_ms", "other", "looks"),
    [
        (0, {}, 1),
        (2, {}, 1),
        (2.1, {}, 2),
        (1, {"texts": ["card of mine"]}, 1),
        (1, {"texts": ["card"]}, 2),
        (1, {"timeout_ms": 81}, 2),
        (1, {"priority": scoring_pb2.REAL_TIME}, 2),
    ],
)
def test_what_a_look_has_predicted_is_taken_for_calls_like_it_for_2_ms(
    after_ms: float, other: dict[str, Any], looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimulatedClock()
    one = dispatcher(dict.fromkeys(SERVED, 0.2), clock)
    asked = []
    predict = one.early_shedding._device.finish_of

    def finish_of(model: Model, path: ServingPath, *rest: Any, **more: Any) -> float | None:
        if path is ServingPath.LATENCY:
            asked.append(path)
        return predict(model, path, *rest, **more)

    monkeypatch.setattr(one.early_shedding._device, "finish_of", finish_of)
    first = one.early_shedding.refusal(message(texts=["my card"]), CALLER, clock.monotonic())
    clock.advance(after_ms / 1000)
    second = one.early_shedding.refusal(message(**{"texts": ["my card"], **other}), CALLER, clock.monotonic())
    assert first is not None
    assert second is not None
    assert len(asked) == looks
    if looks == 1:
        # It is due so much later.
        assert second.retry_after == pytest.approx((first.retry_after or 0.0) - after_ms / 1000)
        assert one._models.serving.models["r-1"].statistics.failed.count == 2


@pytest.mark.parametrize(("after_ms", "refused"), [(1, True), (1.8, False)])
def test_a_call_that_came_late_enough_is_let_through(after_ms: float, refused: bool) -> None:
    """The first one would be late by 1.5 ms."""
    clock = SimulatedClock()
    shedding = dispatcher({ServingPath.LATENCY: 0.0655}, clock).early_shedding
    assert shedding.refusal(message(), CALLER, clock.monotonic()) is not None
    clock.advance(after_ms / 1000)
    assert bool(shedding.refusal(message(), CALLER, clock.monotonic())) is refused


def test_a_prediction_is_not_taken_once_replicas_or_the_release_are_others() -> None:
    clock, lane = SimulatedClock(), ServingPath.LATENCY
    finishes = dict.fromkeys(SERVED, 0.2)
    one = dispatcher(finishes, clock)
    assert one.early_shedding.refusal(message(), CALLER, clock.monotonic()) is not None
    soon = {("r-1", lane): (Option("b", lane, 0.01, 0.001, 0.5),)}
    one._membership.snapshot = dataclasses.replace(one._membership.snapshot, options=soon)
    assert one.early_shedding.refusal(message(), CALLER, clock.monotonic()) is None

    one = dispatcher(finishes, clock)
    assert one.early_shedding.refusal(message(), CALLER, clock.monotonic()) is not None
    finishes |= dict.fromkeys(SERVED, 0.01)
    one._models.serving = dispatcher(finishes, clock, release="r-2")._models.serving
    assert one.early_shedding.refusal(message(), CALLER, clock.monotonic()) is None


def test_a_refusal_keeps_no_model_that_serves_no_more() -> None:
    clock = SimulatedClock()
    one = dispatcher(dict.fromkeys(SERVED, 0.2), clock)
    model = weakref.ref(one._models.serving.models["r-1"])
    assert one.early_shedding.refusal(message(), CALLER, clock.monotonic()) is not None
    one._models.serving = dispatcher({}, clock, release="r-2")._models.serving
    gc.collect()
    assert model() is None


@pytest.mark.parametrize(("words", "refused"), [(40, False), (50, True)])
def test_the_words_of_a_text_count(words: int, refused: bool) -> None:
    """20 ms and 1 ms for each word more, of 64 that are left."""
    clock = SimulatedClock()
    one = dispatcher(dict.fromkeys(SERVED, 0.02), clock)
    long = message(texts=["card " * words])
    assert bool(one.early_shedding.refusal(long, CALLER, clock.monotonic())) is refused


@pytest.mark.parametrize(("ahead", "refused"), [(0, False), (20, False), (25, True)])
def test_calls_that_go_before_it_take_their_time(ahead: int, refused: bool) -> None:
    """2 ms each, of 64 that are left."""
    clock = SimulatedClock()
    one = dispatcher(dict.fromkeys(SERVED, 0.02), clock)
    assert bool(one.early_shedding.refusal(message(), CALLER, clock.monotonic(), ahead)) is refused


@pytest.mark.parametrize(("timeout_ms", "refused"), [(80, False), (150, True)])
def test_an_idle_urgent_lane_saves_no_call_of_another(timeout_ms: int, refused: bool) -> None:
    clock = SimulatedClock()
    one = dispatcher({**dict.fromkeys(SERVED, 0.2), ServingPath.LATENCY: 0.01}, clock)
    status = one.early_shedding.refusal(message(timeout_ms=timeout_ms), CALLER, clock.monotonic())
    assert (status is not None) is refused


@pytest.mark.parametrize(
    "fields",
    [
        {"timeout_ms": 0},
        {"timeout_ms": 300},
        {"priority": 9},
        {"allow_deferred": True},
        {"release": "r-1"},
        {"model": "other"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_other_calls_go_the_whole_way(fields: dict[str, Any]) -> None:
    one, arrived = late()
    assert one.early_shedding.refusal(message(**fields), CALLER, arrived) is None


def test_a_caller_over_its_quota_is_refused_at_a_glance_and_charged_once() -> None:
    clock = SimulatedClock()
    one = dispatcher({}, clock, busy=False, quota=10.0)
    call = CallContext(CALLER, None, "/any", b"")
    assert one.early_shedding.needed(0, clock.monotonic())
    for _ in range(2):
        assert one.early_shedding.refusal(message(), CALLER, clock.monotonic()) is None
        one.charge(check_request(message()), call)
    status = one.early_shedding.refusal(message(), CALLER, clock.monotonic())
    assert status is not None
    assert "over its quota of 10 texts a second" in status.message
    # A refused call takes nothing from the bucket, which is full again after a second.
    clock.advance(1.0)
    assert one.early_shedding.refusal(message(), CALLER, clock.monotonic()) is None


def test_a_request_that_is_over_its_quota_is_refused_by_its_outline_and_one_within_it_is_charged_later() -> None:
    clock = SimulatedClock()
    one = dispatcher({}, clock, busy=False, quota=10.0)
    call = CallContext(CALLER, None, "/any", b"")
    for _ in range(3):
        one.early_shedding.check_quota(CALLER, "", 64)
    one.charge(check_request(message()), call)
    one.early_shedding.check_quota(CALLER, "", 1)
    with pytest.raises(Overloaded, match="over its quota of 10 texts a second"):
        one.early_shedding.check_quota(CALLER, "", 2)
    assert 'outcome="refused",path="none"} 1.0' in generate_latest(one._metrics.registry).decode()


@pytest.mark.parametrize(("text", "admitted"), [("card", 8), ("card " * 150, 2)])
def test_long_texts_take_more_of_a_quota(text: str, admitted: int) -> None:
    one = dispatcher({}, SimulatedClock(), busy=False, quota=40.0)
    request, call = check_request(message(texts=[text])), CallContext(CALLER, None, "/any", b"")
    for _ in range(admitted):
        one.charge(request, call)
    with pytest.raises(Overloaded):
        one.charge(request, call)


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({}, False),
        ({"texts": ["where is it"]}, True),
        # Encoding it would take longer than the look saves.
        ({"texts": ["where is it " * 200]}, False),
        ({"texts": ["where is it"], "text_pairs": ["card"]}, False),
    ],
    ids=["published", "not published", "long", "pair"],
)
def test_a_text_whose_score_may_be_published_needs_no_device(fields: dict[str, Any], refused: bool) -> None:
    clock = SimulatedClock()
    one = dispatcher(dict.fromkeys(SERVED, 0.2), clock, epoch="2026-01-14.1")
    assert bool(one.early_shedding.refusal(message(**fields), CALLER, clock.monotonic())) is refused


@pytest.mark.parametrize(("seconds", "room", "refused"), [(0.06, 1, False), (0.07, 1, True), (0.01, 0, True)])
def test_another_replica_that_would_answer_in_time_saves_a_call(seconds: float, room: int, refused: bool) -> None:
    clock, lane = SimulatedClock(), ServingPath.LATENCY
    others = {("r-1", lane): (Option("b", lane, seconds, 0.001, 0.5, room=room),)}
    one = dispatcher(dict.fromkeys(SERVED, 0.2), clock, others=others)
    assert bool(one.early_shedding.refusal(message(), CALLER, clock.monotonic())) is refused


def test_no_call_is_looked_at_while_the_device_is_idle_or_without_lanes() -> None:
    clock = SimulatedClock()
    now = clock.monotonic()
    assert dispatcher({}, clock).early_shedding.needed(0, now)
    assert not dispatcher({}, clock, busy=False).early_shedding.needed(0, now)
    one = dispatcher({}, clock, busy=False)
    assert one.early_shedding.needed(1, now)
    one._membership.snapshot = dataclasses.replace(one._membership.snapshot, lanes=())
    assert not one.early_shedding.needed(1, now)


def test_a_call_that_waited_for_the_event_loop_is_looked_at_though_the_device_is_idle() -> None:
    clock = SimulatedClock()
    shedding, arrived = dispatcher({}, clock, busy=False).early_shedding, clock.monotonic()
    clock.advance(0.004)
    assert not shedding.needed(0, arrived)
    clock.advance(0.002)
    assert shedding.needed(0, arrived)


def teach(one: Dispatcher, *, late: bool, times: int = 1, fields: dict[str, Any] | None = None, **call: Any) -> None:
    """Let the dispatcher end so many requests that it was not early about."""
    request = check_request(message(**(fields or {})))
    for _ in range(times):
        snapshot, now = one._membership.snapshot, one._clock.monotonic()
        around = CallContext(CALLER, None, "/any", b"", arrived=now, **call)
        one.early_shedding.learn(RequestContext(request, around, snapshot, now, now + 0.08), refused=late)


def refused_with(left_ms: float, one: Dispatcher) -> bool:
    """Whether the look refuses a text of 20 ms where so much is left of its time, less the margin of admission."""
    arrived = one._clock.monotonic() - 0.064 + left_ms / 1000
    return one.early_shedding.refusal(message(), CALLER, arrived) is not None


def test_calls_refused_after_the_look_make_it_stricter_and_others_less_strict_again() -> None:
    one = dispatcher(dict.fromkeys(SERVED, 0.02), SimulatedClock())
    assert not refused_with(20.1, one)
    teach(one, late=True, times=4)
    assert refused_with(21.9, one)
    assert not refused_with(22.1, one)
    teach(one, late=False, times=80)
    assert refused_with(20.9, one)
    assert not refused_with(21.1, one)
    teach(one, late=False, times=1_000)
    assert not refused_with(20.1, one)


def test_a_look_is_never_stricter_by_more_than_6_ms() -> None:
    one = dispatcher(dict.fromkeys(SERVED, 0.02), SimulatedClock())
    teach(one, late=True, times=1_000)
    assert refused_with(25.9, one)
    assert not refused_with(26.1, one)


@pytest.mark.parametrize(
    "call",
    [
        {"hint": ServingPath.LATENCY},
        {"forwarded": ForwardedContext(ServingPath.LATENCY, "", "")},
        {"fields": {"timeout_ms": 0}},
        {"fields": {"texts": ["card", "card"]}},
        {"fields": {"allow_deferred": True, "request_id": "a"}},
        {"fields": {"model": "other"}},
        {"fields": {"release": "r-1"}},
    ],
    ids=str,
)
def test_calls_that_are_not_looked_at_teach_nothing(call: dict[str, Any]) -> None:
    one = dispatcher(dict.fromkeys(SERVED, 0.02), SimulatedClock())
    teach(one, late=True, times=10, **call)
    assert not refused_with(20.1, one)


@pytest.mark.parametrize(("timeout_ms", "path"), [(80, "latency"), (150, "dynamic"), (2_000, "throughput")])
@pytest.mark.parametrize("busy", [True, False])
def test_a_refused_request_counts_in_its_own_lane(timeout_ms: int, path: str, busy: bool) -> None:
    """Before it is encoded where the device is busy, else at the decision. Error budgets are those of lanes."""
    clock = SimulatedClock()
    one = dispatcher(dict.fromkeys(SERVED, 3.0), clock, busy=busy)
    if not busy:
        one._models.serving.models["r-1"].encoder.encode = lambda text: SimpleNamespace(tokens=1)  # type: ignore[method-assign, assignment, misc, return-value]
    call = CallContext(CALLER, None, "/any", b"", arrived=clock.monotonic())
    with pytest.raises(Overloaded):
        asyncio.run(one.score(check_request(message(timeout_ms=timeout_ms)), call))
    written = generate_latest(one._metrics.registry).decode()
    assert f'outcome="refused",path="{path}"}} 1.0' in written
    assert 'outcome="refused",path="none"} 1.0' not in written


@pytest.mark.parametrize(("waited", "path"), [(0.081, "latency"), (0.151, "dynamic"), (2.001, "throughput")])
def test_a_request_that_expired_unread_counts_in_the_lane_of_its_timeout(waited: float, path: str) -> None:
    one, _ = late()
    one.early_shedding.expired(waited)
    written = generate_latest(one._metrics.registry).decode()
    assert f'outcome="expired",path="{path}"}} 1.0' in written
    assert one._models.serving.models["r-1"].statistics.failed.count == 1


def test_the_dispatcher_tells_what_it_refused_and_what_it_answered() -> None:
    clock = SimulatedClock()
    one, told = dispatcher(dict.fromkeys(SERVED, 0.2), clock), list[bool]()
    one.early_shedding.learn = lambda context, refused: told.append(refused)  # type: ignore[method-assign]
    call = CallContext(CALLER, None, "/any", b"", arrived=clock.monotonic())
    with pytest.raises(Overloaded):
        asyncio.run(one.score(check_request(message()), call))

    async def answered(context: RequestContext) -> bytes:
        return b"of another replica"

    one._answer = answered  # type: ignore[method-assign, assignment]
    asyncio.run(one.score(check_request(message()), call))
    assert told == [True, False]
