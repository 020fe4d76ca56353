"""The routing table, row by row, and what must hold for every request."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime_service.errors import ReplicaUnavailable
from realtime_service.routing.policy import Policy, RoutedRequest, decide
from realtime_service.routing.snapshot import Snapshot
from realtime_service.settings import SERVED
from shared_model.types import Priority, ServingPath

LATENCY, DYNAMIC, THROUGHPUT = SERVED
SNAPSHOT = Snapshot(local="here", lanes=SERVED)
PLAIN = RoutedRequest(texts=1, priority=Priority.UNSPECIFIED, timeout=None, precomputed=False)


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
    decision = decide(request, Policy(), SNAPSHOT)
    assert decision.path is path
    assert decision.replica == "here"


requests = st.builds(
    RoutedRequest,
    texts=st.integers(1, 64),
    priority=st.sampled_from(Priority),
    timeout=st.none() | st.floats(0.001, 60),
    precomputed=st.booleans(),
)


@given(requests)
def test_a_published_score_is_used_whatever_the_priority(request: RoutedRequest) -> None:
    path = decide(request, Policy(), SNAPSHOT).path
    assert (path is ServingPath.PRECOMPUTED) == request.precomputed


@given(requests, st.sets(st.sampled_from(SERVED), min_size=1))
def test_several_texts_are_never_latency_work(request: RoutedRequest, lanes: set[ServingPath]) -> None:
    request = replace(request, texts=max(2, request.texts), precomputed=False)
    if lanes == {LATENCY}:
        with pytest.raises(ReplicaUnavailable):
            decide(request, Policy(), Snapshot("here", tuple(lanes)))
    else:
        assert decide(request, Policy(), Snapshot("here", tuple(lanes))).path is not LATENCY


@given(requests, st.floats(0.001, 0.5), st.floats(0.6, 5))
def test_thresholds_are_settings(request: RoutedRequest, low: float, high: float) -> None:
    request = replace(request, texts=1, priority=Priority.NORMAL, precomputed=False)
    path = decide(request, Policy(low, high), SNAPSHOT).path
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
def test_a_lane_that_is_not_here_is_replaced_by_the_next_that_can(
    lanes: tuple[ServingPath, ...], request_: RoutedRequest, path: ServingPath
) -> None:
    decision = decide(request_, Policy(), Snapshot("here", lanes))
    assert decision.path is path
    own = decide(request_, Policy(), SNAPSHOT)
    assert decision.reason == (own.reason if own.path is path else f"{own.reason}; no {own.path} lane here")


@pytest.mark.parametrize(("lanes", "texts"), [((), 1), ((LATENCY,), 2)])
def test_a_replica_that_cannot_says_so(lanes: tuple[ServingPath, ...], texts: int) -> None:
    with pytest.raises(ReplicaUnavailable, match="no dynamic lane and none that could stand in for it"):
        decide(replace(PLAIN, texts=texts), Policy(), Snapshot("here", lanes))
