"""Quotas over replicas: for any arrivals, never much more than the quota, and hardly less while there is demand."""

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from realtime_service.errors import Overloaded
from realtime_service.identity import of_model
from realtime_service.routing.overrides import Policy
from realtime_service.routing.quotas import Quotas, bytes_charged, texts_charged
from realtime_service.routing.snapshot import Replica, Snapshot
from tests.properties import examples
from tests.realtime_service.cluster.fleet import CALLER, Call, Fleet, most_in_a_second, rate

REMEMBERED = 10_000


@dataclass(frozen=True)
class Span:
    """Calls for so many seconds: texts a second at each replica, in requests of so many texts."""

    seconds: float
    rates: Sequence[float]
    texts: int = 1


def calls(spans: Sequence[Span], draw: random.Random, jitter: float = 0.0) -> list[Call]:
    """`jitter`: 0 for even pauses, 1 for random arrivals."""
    return sorted(
        call
        for span, start in zip(spans, itertools.accumulate((it.seconds for it in spans), initial=0.0), strict=False)
        for replica, texts in enumerate(span.rates)
        for call in _calls(span, start, replica, texts / span.texts, draw, jitter)
    )


def _calls(span: Span, start: float, replica: int, each: float, draw: random.Random, jitter: float) -> Iterator[Call]:
    at = start + draw.random() / max(each, 1e-9)
    while at < start + span.seconds:
        yield Call(at, replica, span.texts)
        at += (jitter * draw.expovariate(1.0) + 1 - jitter) / each


@st.composite
def spans(draw: st.DrawFn, replicas: int, quota: float) -> list[Span]:
    """Demand that moves: bursts of all lengths, from nothing to ten times the quota, on some replicas or on all."""
    multiple = st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0, 2.0, 10.0])
    rates = st.lists(multiple.map(lambda it: it * quota), min_size=replicas, max_size=replicas)
    seconds = st.sampled_from([0.1, 0.25, 0.3, 0.6, 1.0, 2.5])
    return draw(st.lists(st.builds(Span, seconds, rates), min_size=1, max_size=6))


phases = st.lists(st.floats(0, 0.99), min_size=1, max_size=4)


@settings(max_examples=examples(150))
@given(st.data(), phases, st.sampled_from([8.0, 40.0]), st.integers(0, 2**32), st.floats(0, 1))
def test_no_second_has_much_more_than_the_quota(
    data: st.DataObject, phases: list[float], quota: float, seed: int, jitter: float
) -> None:
    """The excess is at most a quarter of the quota, and the two texts that the smallest token bucket holds."""
    demand = data.draw(spans(len(phases), quota))
    admitted = Fleet(Policy(quota=quota), phases).admitted(calls(demand, random.Random(seed), jitter))
    assert most_in_a_second(admitted) <= 1.25 * quota + 2 * len(phases)


@settings(max_examples=examples(60))
@given(st.data(), phases, st.integers(0, 2**32))
def test_the_shares_never_add_up_to_more_than_the_quota(data: st.DataObject, phases: list[float], seed: int) -> None:
    """Also while demand moves, and where heartbeats come late, up to half a second apart."""
    quota = 40.0
    fleet = Fleet(Policy(quota=quota), phases, late=1.99, draw=random.Random(seed))
    for call in calls(data.draw(spans(len(phases), quota)), random.Random(seed)):
        fleet.admitted([call])
        assert sum(replica.share(CALLER) for replica in fleet.replicas) <= quota * 1.000001


@settings(max_examples=examples(30))
@given(st.data(), phases, st.integers(2, 64), st.integers(0, 2**32))
def test_several_texts_cost_as_many_tokens_and_a_debt_is_repaid(
    data: st.DataObject, phases: list[float], texts: int, seed: int
) -> None:
    """A replica's last request may be larger than what is left there; over time the quota holds all the same."""
    quota, seconds = 40.0, 20.0
    rates = data.draw(st.lists(st.sampled_from([0.0, 0.5, 2.0, 10.0]), min_size=len(phases), max_size=len(phases)))
    demand = [Span(seconds, [it * quota for it in rates], texts)]
    admitted = Fleet(Policy(quota=quota), phases).admitted(calls(demand, random.Random(seed)))
    assert most_in_a_second(admitted) <= 1.25 * quota + (2 + texts) * len(phases)
    assert rate(admitted, 0.0, seconds) * seconds <= quota * seconds * 1.05 + (2 + texts) * len(phases)


@settings(max_examples=examples(60))
@given(st.data(), phases, st.sampled_from([1.02, 1.3, 2.0, 10.0]), st.integers(0, 2**32))
def test_a_steady_caller_gets_its_quota_wherever_it_calls(
    data: st.DataObject, phases: list[float], multiple: float, seed: int
) -> None:
    quota = 50.0
    weights = data.draw(st.lists(st.integers(0, 10), min_size=len(phases), max_size=len(phases)).filter(any))
    rates = [multiple * quota * weight / sum(weights) for weight in weights]
    admitted = Fleet(Policy(quota=quota), phases).admitted(calls([Span(10.0, rates)], random.Random(seed)))
    assert rate(admitted, 4.0, 10.0) >= 0.9 * quota


@pytest.mark.parametrize("multiple", [0.5, 0.8, 0.95])
def test_a_steady_caller_below_its_quota_is_not_refused(multiple: float) -> None:
    demand = calls([Span(10.0, [0.0, multiple * 100.0, 0.0])], random.Random(1))
    admitted = Fleet(Policy(quota=100.0), [0.0, 0.3, 0.6]).admitted(demand)
    assert [it for it in demand if it.at > 4.0 and it not in set(admitted)] == []


def test_few_texts_evenly_spaced_are_not_refused() -> None:
    """A bucket of less than one text would refuse every second one."""
    for rates in ([5.25], [1.75, 1.75, 1.75], [0.0, 5.25]):
        demand = calls([Span(30.0, rates)], random.Random(1))
        admitted = Fleet(Policy(quota=5.0), [0.0, 0.3, 0.6][: len(rates)]).admitted(demand)
        assert rate(admitted, 10.0, 30.0) >= 0.9 * 5.0


def test_a_caller_well_below_its_quota_may_come_to_any_replica() -> None:
    demand = calls([Span(5.0, [20.0, 0.0, 0.0]), Span(5.0, [20.0, 15.0, 0.0])], random.Random(1))
    assert Fleet(Policy(quota=100.0), [0.0, 0.3, 0.6]).admitted(demand) == demand


def test_shares_follow_demand_that_moves() -> None:
    demand = calls([Span(5.0, [1000.0, 0.0, 0.0]), Span(5.0, [0.0, 0.0, 1000.0])], random.Random(1))
    admitted = Fleet(Policy(quota=100.0), [0.0, 0.3, 0.6]).admitted(demand)
    assert rate(admitted, 8.0, 10.0) >= 90.0
    assert most_in_a_second(admitted) <= 125.0


@given(st.floats(0.05, 0.96), st.integers(2, 8))
def test_what_is_left_of_a_quota_is_most_of_all_for_the_replica_in_use(used: float, replicas: int) -> None:
    """Each other one keeps at least half an equal part of it, for a caller that comes there next."""
    quota = 100.0
    left = quota * (1 - used) / replicas
    names = [str(number) for number in range(replicas)]
    seen = tuple(
        Replica(ReplicaDescription(id=name), (), {CALLER: quota * used} if name == "0" else {}) for name in names
    )

    def share(local: str) -> float:
        snapshot = Snapshot(local, replicas=seen, policy=Policy(quota=quota))
        quotas = Quotas(snapshot)
        for _ in range(3):
            quotas.update(snapshot)
        return quotas.share(CALLER)

    in_use, *others = map(share, names)
    assert in_use - quota * used >= 0.999 * left * (1 + used * (replicas - 1) / 2)
    assert min(others) >= 0.999 * left / 2


def test_a_new_caller_has_an_equal_share_at_each_replica() -> None:
    fleet = Fleet(Policy(quota=300.0), [0.0, 0.3, 0.6])
    admitted = [call for call in calls([Span(0.2, [3000.0] * 3)], random.Random(1)) if fleet.admits(call)]
    for replica in range(3):
        # The full bucket, and a fifth of a second of the share.
        assert sum(it.replica == replica for it in admitted) == pytest.approx(20 + 20, abs=2)


def test_without_redis_the_last_shares_stay() -> None:
    fleet = Fleet(Policy(quota=100.0), [0.0, 0.3, 0.6])
    demand = calls([Span(12.0, [600.0, 300.0, 0.0])], random.Random(1))
    before = fleet.admitted([it for it in demand if it.at < 5.0])
    fleet.redis_available = False
    after = fleet.admitted([it for it in demand if it.at >= 5.0])
    for replica in (0, 1):
        shares = [
            rate([it for it in some if it.replica == replica], *when)
            for some, when in ((before, (3.0, 5.0)), (after, (5.0, 12.0)))
        ]
        assert shares[0] == pytest.approx(shares[1], rel=0.05)
        assert shares[0] == pytest.approx(50.0, rel=0.1)


def test_a_redis_that_lost_its_data_does_not_raise_the_shares() -> None:
    """Replicas re-register one at a time, and the first of them sees no other."""
    fleet = Fleet(Policy(quota=100.0), [0.0, 0.2, 0.4, 0.6, 0.8])
    demand = calls([Span(10.0, [200.0] * 5)], random.Random(1))
    admitted = fleet.admitted([it for it in demand if it.at < 5.0])
    fleet.heartbeats.clear()
    admitted += fleet.admitted([it for it in demand if it.at >= 5.0])
    assert most_in_a_second([it for it in admitted if it.at > 4.0]) <= 1.1 * 100.0


def test_the_share_of_a_replica_that_died_goes_to_the_others() -> None:
    fleet = Fleet(Policy(quota=100.0), [0.0, 0.3])
    demand = calls([Span(10.0, [500.0, 500.0])], random.Random(1))
    fleet.admitted([it for it in demand if it.at < 4.0])
    fleet.dead.add(1)
    del fleet.heartbeats["1"]
    alone = fleet.admitted([it for it in demand if it.at >= 4.0 and it.replica == 0])
    assert rate(alone, 6.0, 10.0) == pytest.approx(100.0, rel=0.05)


def alone(**policy: object) -> Quotas:
    """The quotas of a replica that has seen no other."""
    return Quotas(Snapshot("here", policy=Policy(**policy)))  # type: ignore[arg-type]


def refusal(quotas: Quotas, caller: str, texts: int, now: float) -> Overloaded | None:
    """None if the request was admitted."""
    try:
        quotas.admit(caller, texts, now)
    except Overloaded as refusal:
        return refusal
    return None


@given(
    st.floats(1, 500),
    st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 80), st.none() | st.floats(0, 500)), min_size=1, max_size=40),
)
@example(500.0, [(0.0, 50, None), (0.0, 80, 400.0)])
def test_over_its_quota_is_a_caller_of_whom_so_many_texts_are_not_admitted(
    quota: float, steps: list[tuple[float, int, float | None]]
) -> None:
    """Exactly so, but at the first call and after a heartbeat. The last of a step: the caller's demand at another
    replica, which a heartbeat reports."""
    policy = Policy(quota=quota)
    quotas, now, called = Quotas(Snapshot("a", policy=policy)), 100.0, False
    for seconds, texts, demand in steps:
        now += seconds
        if demand is not None:
            seen = (Replica(ReplicaDescription(id="b"), (), {"x": demand}),)
            quotas.update(Snapshot("a", replicas=seen, policy=policy))
        over = quotas.over("x", texts, now)
        refused = refusal(quotas, "x", texts, now) is not None
        assert refused or not over
        if called and demand is None:
            assert over == refused
        called = True


def test_a_caller_without_quota_is_neither_refused_nor_reported() -> None:
    for quotas in (alone(), alone(quota=1.0, quotas={"free": 0.0})):
        for _ in range(1000):
            quotas.admit("free", 64, 0.0)
        assert quotas.demand(0.0) == {}


def test_a_caller_may_have_a_quota_of_its_own() -> None:
    quotas = alone(quota=1000.0, quotas={"small": 10.0})
    assert [refusal(quotas, "small", 1, 0.0) is None for _ in range(3)] == [True, True, False]
    assert refusal(quotas, "other", 64, 0.0) is None


@pytest.mark.parametrize(
    ("name", "caller"),
    [
        ("alice", "token:alice"),
        ("token:alice", "token:alice"),
        ("addr:10.0.0.7", "addr:10.0.0.7"),
        # As they were named once.
        ("ipv4:10.0.0.7", "addr:10.0.0.7"),
        ("ipv6:%5B::1%5D", "addr:::1"),
        ("addr:2001:db8::/64", "addr:2001:db8::/64"),
        ("addr:2001:db8::7", "addr:2001:db8::/64"),
        ("ipv6:%5B2001:db8::7%5D", "addr:2001:db8::/64"),
    ],
)
def test_operators_name_a_verified_caller_or_an_address(name: str, caller: str) -> None:
    quotas = alone(quotas={name: 10.0}, by_operators={f"quota.{name}": 10.0})
    quotas.admit(caller, 64, 0.0)
    refused = refusal(quotas, caller, 1, 0.0)
    assert refused
    assert refused.why == "the caller is over its quota of 10 texts a second by the operators' policy"


@pytest.mark.parametrize(
    ("name", "caller"),
    [
        ("alice", "addr:alice"),
        ("alice", "claimed:alice"),
        ("addr:10.0.0.7", "token:addr:10.0.0.7"),
        ("ipv4:10.0.0.7", "token:ipv4:10.0.0.7"),
        ("token:alice", "token:token:alice"),
    ],
)
def test_no_other_caller_has_that_quota(name: str, caller: str) -> None:
    quotas = alone(quotas={name: 1.0})
    for _ in range(100):
        quotas.admit(caller, 64, 0.0)


@pytest.mark.parametrize(
    ("by_operators", "caller", "whose"),
    [
        ({}, "other", ""),
        ({"quota": 10.0}, "other", " by the operators' policy"),
        ({"quota": 10.0}, "small", ""),
        ({"quota.small": 5.0}, "small", " by the operators' policy"),
    ],
)
def test_a_refusal_says_where_the_quota_is_the_operators(
    by_operators: dict[str, float], caller: str, whose: str
) -> None:
    quotas = alone(quota=10.0, quotas={"small": 5.0}, by_operators=by_operators)
    quotas.admit(caller, 64, 0.0)
    refused = refusal(quotas, caller, 1, 0.0)
    assert refused
    assert refused.why == f"the caller is over its quota of {5 if caller == 'small' else 10} texts a second{whose}"


def test_one_caller_over_its_quota_costs_the_others_nothing() -> None:
    quotas = alone(quota=10.0)
    quotas.admit("greedy", 64, 0.0)
    refused = refusal(quotas, "greedy", 3, 0.0)
    assert refused
    assert refused.why == "the caller is over its quota of 10 texts a second"
    assert refused.retry_after == pytest.approx((64 - 2 + 2) / 10)
    quotas.admit("modest", 1, 0.0)


@pytest.mark.parametrize(
    ("texts", "pairs", "charged"),
    [
        ((), (), 0),
        (("",), (), 1),
        (("a" * 64, "a" * 256, "a" * 257), (), 4),
        # By its bytes: three for each of these characters, and for half of a pair of surrogates.
        (("卡" * 85,), (), 1),
        (("卡" * 86, "\ud800" * 86), (), 4),
        # Cut to what a model reads.
        (("a" * 65_536,) * 64, (), 64 * 8),
        # A text and its pair are read as one.
        (("a" * 200, "a"), ("a" * 100, "a"), 3),
    ],
)
def test_a_long_text_counts_as_several(texts: tuple[str, ...], pairs: tuple[str, ...], charged: int) -> None:
    assert texts_charged(texts, pairs) == charged
    sizes = [[len(it.encode("utf-8", "surrogatepass")) for it in some] for some in (texts, pairs)]
    assert bytes_charged(*sizes) == charged


@given(st.floats(0.5, 500), st.integers(1, 64), st.integers(1, 64))
def test_a_retry_after_the_hint_is_admitted(quota: float, first: int, second: int) -> None:
    quotas, now = alone(quota=quota), 1000.0
    quotas.admit("caller", first, now)
    if refused := refusal(quotas, "caller", second, now):
        # An earlier retry is refused.
        assert refusal(quotas, "caller", second, now + 0.99 * refused.retry_after)
        assert refusal(quotas, "caller", second, now + 1.001 * refused.retry_after) is None


def test_a_changed_quota_acts_at_the_next_heartbeat() -> None:
    fleet = Fleet(Policy(quota=100.0), [0.0, 0.5])
    demand = calls([Span(10.0, [400.0, 400.0])], random.Random(1))
    fleet.admitted([it for it in demand if it.at < 4.0])
    fleet.policy = Policy(version=1, quota=50.0)
    after = fleet.admitted([it for it in demand if it.at >= 4.0])
    assert rate(after, 5.0, 6.0) == pytest.approx(50.0, abs=3)
    assert rate(after, 6.0, 10.0) == pytest.approx(50.0, rel=0.05)


def test_new_callers_do_not_fill_the_memory() -> None:
    quotas = alone(quota=10.0)
    for number in range(3 * REMEMBERED):
        quotas.admit(f"stranger {number}", 1, number / 1000)
        if number % 250 == 0:
            assert len(quotas.demand(number / 1000)) <= 256
    assert len(quotas) <= REMEMBERED


def test_a_busy_caller_is_not_evicted_for_new_ones() -> None:
    quotas = alone(quota=10.0)
    admitted = 0
    for number in range(3 * REMEMBERED):
        now = number / 3000
        quotas.admit(f"stranger {number}", 1, now)
        if number % 30 == 0:
            admitted += refusal(quotas, "greedy", 1, now) is None
    assert admitted <= 10.0 * 10 + 3
    assert "greedy" in quotas.demand(now)


def test_an_idle_caller_is_evicted_once_its_debt_is_repaid() -> None:
    quotas = alone(quota=0.5)
    quotas.admit("debtor", 64, 0.0)
    quotas.admit("passer-by", 1, 0.0)
    quotas.demand(100.0)
    assert refusal(quotas, "debtor", 1, 100.0)
    quotas.demand(300.0)
    assert len(quotas) == 0


def test_heartbeats_report_the_callers_nearest_to_their_quotas() -> None:
    quotas = alone(quota=100.0, quotas={"small": 1.0, "free": 0.0})
    for number in range(400):
        for _ in range(5):
            refusal(quotas, f"caller {number}", 1, 0.0)
    refusal(quotas, "small", 1, 0.0)
    heartbeats = quotas.demand(0.0)
    assert len(heartbeats) == 256
    assert "free" not in heartbeats
    for _ in range(500):
        refusal(quotas, "loud", 1, 0.0)
    assert quotas.demand(0.0)["loud"] == pytest.approx(100.0)


def test_the_reported_demand_of_this_replica_counts_not_its_current_one() -> None:
    """Other replicas give up only as much of their shares as was reported to them."""
    quotas = Quotas(Snapshot("here", policy=Policy(quota=100.0)))
    other = Replica(ReplicaDescription(id="there"), (), {CALLER: 100.0})
    for beat in range(10):
        for _ in range(100):
            refusal(quotas, CALLER, 1, 0.25 * beat)
        here = Replica(ReplicaDescription(id="here"), (), {})
        quotas.update(Snapshot("here", replicas=(here, other), policy=Policy(quota=100.0)))
    admitted = [refusal(quotas, CALLER, 1, 3.0 + number / 100) is None for number in range(200)]
    assert sum(admitted) < 10


def test_a_decision_takes_microseconds_however_many_callers_there_are() -> None:
    """2 µs on a quiet machine; a decision that is not O(1) would take a hundred times as long."""
    quotas = alone(quota=1000.0)
    names = [f"caller {number}" for number in range(REMEMBERED)]
    random.Random(1).shuffle(names)
    best = min(_seconds(quotas, names, float(turn)) for turn in range(5))
    assert best / len(names) < 50e-6


def _seconds(quotas: Quotas, names: Sequence[str], now: float) -> float:
    """CPU seconds."""
    started = time.thread_time()
    for name in names:
        quotas.admit(name, 1, now)
    return time.thread_time() - started


def test_a_quota_counts_for_each_model_by_itself() -> None:
    policy = Policy(quota=10.0, quotas={"bob@bank": 20.0, "model:side/bob@bank": 5.0})
    keys = ("token:bob@bank", of_model("token:bob@bank", "side"), of_model("token:bob@bank", "third"))
    assert [policy.quota_of(key) for key in keys] == [
        (20.0, "quota.bob@bank"),
        (5.0, "quota.model:side/bob@bank"),
        (20.0, "quota.bob@bank"),
    ]
    assert policy.quota_of(of_model("addr:1.2.3.4", "side")) == (10.0, "quota")
    quotas = alone(quota=10.0)
    for model in ("", "side"):
        # All that a bucket holds.
        quotas.admit(of_model("addr:1.2.3.4", model), 2, 0.0)
        with pytest.raises(Overloaded):
            quotas.admit(of_model("addr:1.2.3.4", model), 2, 0.0)
