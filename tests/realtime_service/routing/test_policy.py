"""The routing table, row by row, and the invariants of every decision."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime_service.errors import Overloaded, PermissionDenied, ReplicaUnavailable
from realtime_service.routing.overrides import Policy
from realtime_service.routing.policy import Decision, RoutedRequest, another, decide, own_lane, release_for, stand_in
from realtime_service.routing.snapshot import Option, Snapshot
from realtime_service.settings import SERVED
from shared_model.types import Priority, ServingPath

LATENCY, DYNAMIC, THROUGHPUT = SERVED
RELEASE = "r"
SNAPSHOT = Snapshot(local="here", lanes=SERVED)
#: This replica would answer at once, on any lane.
HERE = dict.fromkeys(SERVED, 0.0)
PLAIN = RoutedRequest(1, Priority.UNSPECIFIED, None, None, RELEASE, HERE)


def option(
    replica: str, finish: float, path: ServingPath = DYNAMIC, utilisation: float = 0.0, room: float = math.inf
) -> Option:
    return Option(replica, path, finish, per_text=0.001, utilisation=utilisation, room=room)


@dataclass
class Seen:
    """A lane of a worker with so many seconds of work."""

    seconds: float

    def ahead(self) -> float:
        return self.seconds

    def add(self, seconds: float) -> None:
        self.seconds += seconds


def worker(
    replica: str, ahead: float, per_text: float = 0.010, path: ServingPath = DYNAMIC, room: float = math.inf
) -> Option:
    """Of another worker of this service, which has not been idle for long by its heartbeats."""
    return Option(replica, path, 9.0, per_text, utilisation=0.9, room=room, worker=Seen(ahead))


def others(*found: Option, utilisation: Mapping[ServingPath, float] | None = None) -> Snapshot:
    """A snapshot with these lanes of other replicas, and the utilisation of this replica's own."""
    paths = {it.path for it in found}
    options = {(RELEASE, path): tuple(it for it in found if it.path is path) for path in paths}
    return replace(SNAPSHOT, options=options, utilisation=utilisation or {})


@pytest.mark.parametrize(
    ("priority", "timeout", "texts", "path"),
    [
        (Priority.UNSPECIFIED, None, 1, ServingPath.DYNAMIC),
        (Priority.NORMAL, None, 1, ServingPath.DYNAMIC),
        (Priority.REAL_TIME, None, 1, ServingPath.LATENCY),
        (Priority.REAL_TIME, 5.0, 1, ServingPath.LATENCY),
        (Priority.UNSPECIFIED, 0.099, 1, ServingPath.LATENCY),
        # 100 and 1000 ms exactly are dynamic.
        (Priority.UNSPECIFIED, 0.1, 1, ServingPath.DYNAMIC),
        (Priority.UNSPECIFIED, 1.0, 1, ServingPath.DYNAMIC),
        (Priority.UNSPECIFIED, 1.001, 1, ServingPath.THROUGHPUT),
        (Priority.BATCH, None, 1, ServingPath.THROUGHPUT),
        (Priority.BATCH, 0.5, 1, ServingPath.THROUGHPUT),
        # The rules are tried in order: latency before throughput.
        (Priority.BATCH, 0.05, 1, ServingPath.LATENCY),
        # Several texts are never latency work.
        (Priority.REAL_TIME, 0.05, 2, ServingPath.DYNAMIC),
        (Priority.BATCH, 0.05, 2, ServingPath.THROUGHPUT),
    ],
)
def test_the_rules_in_their_order(priority: Priority, timeout: float | None, texts: int, path: ServingPath) -> None:
    request = replace(PLAIN, priority=priority, timeout=timeout, texts=texts)
    decision = decide(request, Policy(), SNAPSHOT, 0.0)
    assert decision.path is path
    assert decision.replica == "here"


requests = st.builds(
    RoutedRequest,
    texts=st.integers(1, 64),
    priority=st.sampled_from(Priority),
    timeout=st.none() | st.floats(0.001, 60),
    remaining_budget=st.none(),
    release=st.just(RELEASE),
    here=st.just(HERE),
    precomputed=st.booleans(),
)


@given(requests)
def test_a_published_score_is_used_whatever_the_priority(request: RoutedRequest) -> None:
    path = decide(request, Policy(), SNAPSHOT, 0.0).path
    assert (path is ServingPath.PRECOMPUTED) == request.precomputed


@given(requests, st.sampled_from(SERVED))
def test_the_lane_that_the_caller_names_comes_before_all_else(request: RoutedRequest, hint: ServingPath) -> None:
    path = decide(replace(request, hint=hint), Policy(), SNAPSHOT, 0.0).path
    assert path is hint or (hint is LATENCY and request.texts > 1)


@given(requests, st.sets(st.sampled_from(SERVED)), st.none() | st.sampled_from(SERVED), st.sampled_from((HERE, {})))
def test_no_request_takes_a_lane_that_its_caller_may_not_use(
    request: RoutedRequest, lanes: set[ServingPath], hint: ServingPath | None, here: Mapping[ServingPath, float]
) -> None:
    """On any replica, also where the first choice is lost; and none is refused while a permitted lane would do."""
    snapshot = others(*(option("other", 0.0, lane) for lane in SERVED))
    free = replace(request, precomputed=False, hint=hint, here=here)
    usable = lanes if request.texts == 1 else lanes - {LATENCY}
    named = hint if request.texts == 1 or hint is not LATENCY else None
    asked = replace(free, lanes=frozenset(lanes))
    if not usable or (named and named not in lanes):
        with pytest.raises(PermissionDenied):
            decide(asked, Policy(), snapshot, 0.0)
        return
    decision = decide(asked, Policy(), snapshot, 0.0)
    assert decision.path in lanes
    assert own_lane(asked, Policy()) == (decision.path, decision.reason)
    if (unbound := decide(free, Policy(), snapshot, 0.0)).path in lanes:
        assert decision == unbound
    instead = stand_in(decision, asked, snapshot, (), 0.0)
    assert instead is None or instead.path in lanes


@given(requests, st.sets(st.sampled_from(SERVED), min_size=1))
def test_several_texts_are_never_latency_work(request: RoutedRequest, lanes: set[ServingPath]) -> None:
    here = dict.fromkeys(lanes, 0.0)
    request = replace(request, texts=max(2, request.texts), precomputed=False, here=here)
    if lanes == {LATENCY}:
        with pytest.raises(ReplicaUnavailable):
            decide(request, Policy(), SNAPSHOT, 0.0)
    else:
        assert decide(request, Policy(), SNAPSHOT, 0.0).path is not LATENCY


@pytest.mark.parametrize(
    ("set_", "timeout", "reason"),
    [
        ({}, 0.079, "timeout below 80 ms"),
        ({"quota": 200.0}, 0.079, "timeout below 80 ms"),
        ({"latency_below_ms": 80.0}, 0.079, "timeout below 80 ms by the operators' policy"),
        ({"latency_below_ms": 80.0}, 0.08, "neither urgent nor bulk by the operators' policy"),
        ({"throughput_above_ms": 2000.0}, 1.5, "neither urgent nor bulk by the operators' policy"),
        ({"throughput_above_ms": 2000.0}, 2.5, "timeout above 2000 ms by the operators' policy"),
        ({"latency_below_ms": 80.0}, 2.5, "timeout above 2000 ms"),
        ({"latency_below_ms": 80.0}, None, "neither urgent nor bulk"),
    ],
)
def test_a_reason_says_if_it_depends_on_a_number_of_the_operators(
    set_: Mapping[str, float], timeout: float | None, reason: str
) -> None:
    policy = Policy(latency_below=0.08, throughput_above=2.0, by_operators=set_)
    assert decide(replace(PLAIN, timeout=timeout), policy, SNAPSHOT, 0.0).reason == reason


@given(requests, st.floats(0.001, 0.5), st.floats(0.6, 5))
def test_thresholds_are_settings(request: RoutedRequest, low: float, high: float) -> None:
    request = replace(request, texts=1, priority=Priority.NORMAL, precomputed=False)
    path = decide(request, Policy(1, low, high), SNAPSHOT, 0.0).path
    if request.timeout is not None and request.timeout < low:
        assert path is ServingPath.LATENCY
    elif request.timeout is not None and request.timeout > high:
        assert path is ServingPath.THROUGHPUT
    else:
        assert path is ServingPath.DYNAMIC


@pytest.mark.parametrize(
    ("lanes", "request_", "path"),
    [
        ((DYNAMIC, THROUGHPUT), replace(PLAIN, priority=Priority.REAL_TIME), DYNAMIC),
        ((THROUGHPUT,), replace(PLAIN, priority=Priority.REAL_TIME), THROUGHPUT),
        ((LATENCY, THROUGHPUT), PLAIN, THROUGHPUT),
        ((LATENCY,), PLAIN, LATENCY),
        ((LATENCY, DYNAMIC), replace(PLAIN, priority=Priority.BATCH), DYNAMIC),
        ((LATENCY,), replace(PLAIN, priority=Priority.BATCH), LATENCY),
        ((), replace(PLAIN, precomputed=True), ServingPath.PRECOMPUTED),
    ],
)
def test_a_lane_that_no_replica_has_falls_back_to_the_next(
    lanes: tuple[ServingPath, ...], request_: RoutedRequest, path: ServingPath
) -> None:
    decision = decide(replace(request_, here=dict.fromkeys(lanes, 0.0)), Policy(), SNAPSHOT, 0.0)
    own = decide(request_, Policy(), SNAPSHOT, 0.0)
    assert decision.path is path
    assert decision.reason.startswith(own.reason)
    assert (f"; no {own.path} lane" in decision.reason) == (own.path is not path)


@pytest.mark.parametrize(("lanes", "texts"), [((), 1), ((LATENCY,), 2)])
def test_a_request_that_no_lane_can_take_is_refused_as_unavailable(lanes: tuple[ServingPath, ...], texts: int) -> None:
    with pytest.raises(ReplicaUnavailable, match="no replica has a lane"):
        decide(replace(PLAIN, texts=texts, here=dict.fromkeys(lanes, 0.0)), Policy(), SNAPSHOT, 0.0)


@pytest.mark.parametrize(
    ("pinned", "canary", "draw", "chosen"),
    [
        ("p", "c", 0.0, "p"),
        ("", "c", 0.29, "c"),
        ("", "c", 0.3, "a"),
        ("", "", 0.0, "a"),
    ],
)
def test_which_release(pinned: str, canary: str, draw: float, chosen: str) -> None:
    assert release_for(pinned, "a", canary, 0.3, draw) == chosen


URGENT = replace(PLAIN, remaining_budget=0.040)


@pytest.mark.parametrize(
    ("name", "here", "snapshot", "draw", "replica", "path"),
    [
        ("in time here", 0.010, others(option("b", 0.001)), 0.0, "here", DYNAMIC),
        ("late here, in time there", 0.050, others(option("b", 0.030)), 0.0, "b", DYNAMIC),
        ("the better of two", 0.050, others(option("b", 0.030), option("c", 0.020)), 0.0, "c", DYNAMIC),
        (
            "two drawn, the first and the second of three",
            0.050,
            others(option("b", 0.030), option("c", 0.020), option("d", 0.001)),
            0.0,
            "c",
            DYNAMIC,
        ),
        (
            "both drawn are late, the third is not",
            0.050,
            others(option("b", 0.060), option("c", 0.070), option("d", 0.030)),
            0.0,
            "d",
            DYNAMIC,
        ),
        (
            "the better of two is full",
            0.050,
            others(option("b", 0.020, room=0), option("c", 0.030)),
            0.0,
            "c",
            DYNAMIC,
        ),
        (
            "both drawn are full, the third is not",
            0.050,
            others(option("b", 0.020, room=0), option("c", 0.010, room=0), option("d", 0.030)),
            0.0,
            "d",
            DYNAMIC,
        ),
        (
            "not to one that is full, above its load target",
            0.010,
            others(option("b", 0.005, room=0), utilisation={DYNAMIC: 0.7}),
            0.0,
            "here",
            DYNAMIC,
        ),
        (
            "another lane, where its own is late here and full elsewhere",
            0.050,
            others(option("b", 0.010, room=0), option("b", 0.035, THROUGHPUT)),
            0.0,
            "b",
            THROUGHPUT,
        ),
        (
            "above its load target it gives away",
            0.010,
            others(option("b", 0.020, utilisation=0.5), utilisation={DYNAMIC: 0.7}),
            0.0,
            "b",
            DYNAMIC,
        ),
        (
            "not to one that is as loaded",
            0.010,
            others(option("b", 0.005, utilisation=0.7), utilisation={DYNAMIC: 0.7}),
            0.0,
            "here",
            DYNAMIC,
        ),
        (
            "not to one that would be late",
            0.010,
            others(option("b", 0.050, utilisation=0.1), utilisation={DYNAMIC: 0.7}),
            0.0,
            "here",
            DYNAMIC,
        ),
        (
            "another lane, where all of its own would be late",
            0.050,
            others(option("b", 0.060), option("b", 0.035, THROUGHPUT)),
            0.0,
            "b",
            THROUGHPUT,
        ),
    ],
)
def test_which_replica(
    name: str, here: float, snapshot: Snapshot, draw: float, replica: str, path: ServingPath
) -> None:
    policy = Policy(load_targets={DYNAMIC: 0.6})
    decision = decide(replace(URGENT, here={DYNAMIC: here}), policy, snapshot, draw)
    assert (decision.replica, decision.path) == (replica, path), name


@pytest.mark.parametrize(
    ("name", "here", "snapshot", "replica"),
    [
        ("clearly sooner", 0.050, others(worker("b", 0.0)), "b"),
        ("just sooner", 0.050, others(worker("b", 0.034)), "here"),
        ("idle here", 0.010, others(worker("b", 0.0, per_text=0.0)), "here"),
        ("the soonest", 0.050, others(worker("b", 0.010), worker("c", 0.005), worker("d", 0.015)), "c"),
        ("full there", 0.050, others(worker("b", 0.0, room=0)), "here"),
        ("another service", 0.050, others(option("b", 0.001)), "here"),
        ("another service, sooner", 0.050, others(option("b", 0.001), worker("c", 0.010)), "c"),
    ],
)
def test_a_worker_sends_what_another_one_would_answer_clearly_sooner(
    name: str, here: float, snapshot: Snapshot, replica: str
) -> None:
    for budget in (None, 0.100):
        request = replace(PLAIN, here={DYNAMIC: here}, remaining_budget=budget, alone=lambda path: 0.010)
        assert decide(request, Policy(), snapshot, 0.0).replica == replica, name


@given(st.floats(0.002, 9.0), st.floats(0, 0.1))
def test_a_worker_that_would_begin_at_once_keeps_its_requests(alone: float, per_text: float) -> None:
    """However long their texts are, and however short those are that heartbeats tell of."""
    request = replace(PLAIN, here={DYNAMIC: alone}, alone=lambda path: alone)
    assert decide(request, Policy(), others(worker("b", 0.0, per_text)), 0.0).replica == "here"


def test_a_request_that_another_worker_would_answer_late_stays() -> None:
    """Its texts take longer there than here."""
    snapshot = others(worker("b", 0.0, per_text=0.030))
    late = replace(PLAIN, here={DYNAMIC: 0.090}, remaining_budget=0.020, alone=lambda path: 0.010)
    with pytest.raises(Overloaded):
        decide(late, Policy(), snapshot, 0.0)
    assert decide(replace(late, remaining_budget=0.030), Policy(), snapshot, 0.0).replica == "b"


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.0001, 0.1), st.integers(1, 64))
def test_two_workers_do_not_exchange_requests(one: float, two: float, per_text: float, texts: int) -> None:
    """Of one kind. `one`, `two`: seconds of the work under way at each."""

    def sends(here: float, there: float) -> bool:
        alone = texts * per_text
        request = replace(PLAIN, texts=texts, here={DYNAMIC: here + alone}, alone=lambda path: alone)
        return decide(request, Policy(), others(worker("other", there, per_text)), 0.0).replica == "other"

    if sends(one, two):
        assert not sends(two, one)
        assert not sends(two + texts * per_text, one)


def test_a_refusal_tells_when_the_first_would_be_in_time() -> None:
    snapshot = others(option("b", 0.060), option("b", 0.050, THROUGHPUT))
    with pytest.raises(Overloaded) as refused:
        decide(replace(URGENT, here={DYNAMIC: 0.080}), Policy(), snapshot, 0.0)
    assert refused.value.retry_after == pytest.approx(0.010)


@pytest.mark.parametrize("remaining_budget", [None, 10.0])
def test_where_its_own_lane_is_full_a_request_is_refused_and_fills_no_other(remaining_budget: float | None) -> None:
    bulk = replace(PLAIN, here={}, priority=Priority.BATCH, remaining_budget=remaining_budget)
    full, idle = option("b", 2.560, THROUGHPUT, room=0), option("b", 0.001)
    with pytest.raises(Overloaded, match="throughput lane is full") as refused:
        decide(bulk, Policy(), others(full, idle), 0.0)
    assert refused.value.retry_after == pytest.approx(2.560)
    room = option("c", 3.0, THROUGHPUT)
    assert decide(bulk, Policy(), others(full, idle, room), 0.0).replica == "c"
    assert another(Decision(THROUGHPUT, "c", ""), bulk, others(full, idle, room), {"c"}, 0.0) is None


def test_a_full_fallback_lane_is_not_reported_as_missing() -> None:
    full = option("b", 0.100, THROUGHPUT, room=0)
    with pytest.raises(Overloaded) as refused:
        decide(replace(PLAIN, here={}), Policy(), others(full), 0.0)
    assert refused.value.retry_after == pytest.approx(0.100)
    assert decide(replace(PLAIN, here={}), Policy(), others(full, option("b", 0.1, LATENCY)), 0.0).path is LATENCY


FINISHES = st.dictionaries(st.sampled_from(SERVED), st.floats(0.001, 0.2))


@given(requests, FINISHES, FINISHES, st.floats(0, 0.999))
def test_no_request_goes_before_others_in_a_more_urgent_lane_where_its_own_is_served(
    request: RoutedRequest, here: Mapping[ServingPath, float], there: Mapping[ServingPath, float], draw: float
) -> None:
    request = replace(request, precomputed=False, here=here, remaining_budget=0.040)
    snapshot = others(*(option("b", finish, path) for path, finish in there.items()))
    own, _ = own_lane(request, Policy())
    try:
        decision = decide(request, Policy(), snapshot, draw)
    except (Overloaded, ReplicaUnavailable):
        return
    lanes = here if decision.replica == "here" else there
    assert SERVED.index(decision.path) >= SERVED.index(own) or own not in lanes


def test_a_late_request_takes_an_idle_urgent_lane_only_where_its_own_is_not_served() -> None:
    late = replace(URGENT, here={DYNAMIC: 0.080, LATENCY: 0.001})
    both = (option("b", 0.060), option("b", 0.001, LATENCY))
    with pytest.raises(Overloaded):
        decide(late, Policy(), others(*both), 0.0)
    assert decide(late, Policy(), others(*both, option("c", 0.010, LATENCY)), 0.0).replica == "c"


@pytest.mark.parametrize("real_time", [False, True])
def test_texts_under_way_use_up_room_until_they_end(real_time: bool) -> None:
    lane = option("b", 0.001, room=2)
    lane.real_time = option("b", 0.001, room=2)
    seen = lane.real_time if real_time else lane
    lane.send(0.001, texts=1, real_time=False)
    assert (seen.full(1), seen.full(2)) == (False, True)
    lane.send(0.001, texts=1, real_time=False)
    assert seen.full(1)
    lane.send(-0.001, texts=-1, real_time=False)
    assert not seen.full(1)


def test_work_sent_since_the_heartbeat_delays_the_prediction() -> None:
    snapshot = others(option("b", 0.010), option("c", 0.020))
    away = replace(URGENT, here={})
    assert decide(away, Policy(), snapshot, 0.0).replica == "b"
    snapshot.options[RELEASE, DYNAMIC][0].sent.add(0.015, per_text=0.0)
    assert decide(away, Policy(), snapshot, 0.0).replica == "c"


def test_two_equal_replicas_each_get_their_share() -> None:
    away, near = replace(URGENT, here={}), others(option("b", 0.010), option("c", 0.0119))
    assert {decide(away, Policy(), near, draw).replica for draw in (0.1, 0.9)} == {"b", "c"}
    apart = others(option("b", 0.010), option("c", 0.0121))
    assert {decide(away, Policy(), apart, draw).replica for draw in (0.1, 0.9)} == {"b"}


def test_another_replica_has_the_same_path_and_was_not_tried() -> None:
    snapshot = others(option("b", 0.010), option("c", 0.020), option("d", 0.050), option("e", 0.001, THROUGHPUT))
    first = Decision(DYNAMIC, "b", "why")
    assert another(first, URGENT, snapshot, {"b"}, 0.0) == Decision(DYNAMIC, "c", "why")
    # The replicas that are left would be late.
    assert another(first, URGENT, snapshot, {"b", "c"}, 0.0) is None


finishes = st.floats(0.0, 0.2)
found = st.lists(
    st.builds(option, st.sampled_from("bcdefg"), finishes, st.sampled_from(SERVED), finishes, st.integers(0, 4))
    | st.builds(worker, st.sampled_from("bcdefg"), finishes, finishes, st.sampled_from(SERVED), st.integers(0, 4)),
    max_size=12,
    unique_by=lambda it: (it.replica, it.path),
)
routed = st.builds(
    RoutedRequest,
    texts=st.integers(1, 3),
    priority=st.sampled_from(Priority),
    timeout=st.none() | st.floats(0.01, 2.0),
    remaining_budget=st.none() | finishes,
    release=st.just(RELEASE),
    here=st.dictionaries(st.sampled_from(SERVED), finishes),
    hint=st.none() | st.sampled_from(SERVED),
)


def answered(request: RoutedRequest, snapshot: Snapshot, draw: float) -> Decision | None:
    try:
        return decide(request, Policy(load_targets=dict.fromkeys(SERVED, 0.1)), snapshot, draw)
    except (Overloaded, ReplicaUnavailable):
        return None


@given(routed, found, st.floats(0, 1, exclude_max=True), st.floats(0.0, 0.2))
def test_more_budget_never_turns_an_answer_into_a_refusal(
    request: RoutedRequest, options: list[Option], draw: float, more: float
) -> None:
    """The request's own timeout stays, so that the same rule applies."""
    snapshot = others(*options)
    if answered(request, snapshot, draw) and request.remaining_budget is not None:
        assert answered(replace(request, remaining_budget=request.remaining_budget + more), snapshot, draw)
        assert answered(replace(request, remaining_budget=None), snapshot, draw)


@given(routed, found, st.floats(0, 1, exclude_max=True), st.floats(0.0, 1.0))
def test_less_load_never_turns_an_answer_into_a_refusal(
    request: RoutedRequest, options: list[Option], draw: float, share: float
) -> None:
    if answered(request, others(*options), draw):
        less = [replace(it, finish=it.finish * share, utilisation=it.utilisation * share) for it in options]
        here = {lane: finish * share for lane, finish in request.here.items()}
        assert answered(replace(request, here=here), others(*less), draw)


@given(routed, found, st.floats(0, 1, exclude_max=True))
def test_the_chosen_replica_has_the_lane_and_would_be_in_time(
    request: RoutedRequest, options: list[Option], draw: float
) -> None:
    finishes = {(it.replica, it.path): it.predicted(request.texts) for it in options if not it.full(request.texts)}
    finishes |= {("here", lane): finish for lane, finish in request.here.items()}
    own, _ = own_lane(request, Policy())
    with_own = {it.replica for it in options if it.path is own} | ({"here"} if own in request.here else set())
    able = {
        (replica, lane)
        for (replica, lane), finish in finishes.items()
        if (request.remaining_budget is None or finish <= request.remaining_budget)
        and (lane is not LATENCY or request.texts == 1)
        # Not in a more urgent lane where it has its own.
        and (replica not in with_own or SERVED.index(lane) >= SERVED.index(own))
    }
    decision = answered(request, others(*options), draw)
    # A request whose own lane is full is refused, though another lane might take it.
    assert decision or not able or any(it.full(request.texts) for it in options)
    assert able or not decision
    assert decision is None or (decision.replica, decision.path) in able


@pytest.mark.parametrize(
    ("lane", "texts", "elsewhere", "tried", "expected"),
    [
        (THROUGHPUT, 1, [("b", LATENCY), ("c", DYNAMIC)], {"a"}, ("c", DYNAMIC)),
        (THROUGHPUT, 1, [("b", LATENCY), ("c", DYNAMIC)], {"a", "c"}, ("b", LATENCY)),
        (THROUGHPUT, 2, [("b", LATENCY)], {"a"}, None),
        (LATENCY, 1, [("b", THROUGHPUT)], {"a"}, ("b", THROUGHPUT)),
        (LATENCY, 1, [("a", DYNAMIC)], {"a"}, None),
    ],
)
def test_an_unreachable_lane_has_a_fallback(
    lane: ServingPath,
    texts: int,
    elsewhere: list[tuple[str, ServingPath]],
    tried: set[str],
    expected: tuple[str, ServingPath] | None,
) -> None:
    snapshot = others(*(option(replica, 0.01, path) for replica, path in elsewhere))
    request = replace(PLAIN, texts=texts, here={})
    found = stand_in(Decision(lane, "a", "why"), request, snapshot, tried, 0.0)
    assert (found and (found.replica, found.path)) == expected
    if found:
        assert found.reason == f"why; {lane} could not be reached"
