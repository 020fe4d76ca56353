"""When a call may be sent twice: without a network."""

from hypothesis import given
from hypothesis import strategies as st

from realtime_service.cluster.hedging import ENOUGH, LARGEST_SHARE, Hedges
from shared_model.types import ServingPath

PATH = ServingPath.LATENCY


@given(st.lists(st.tuples(st.floats(0, 0.05), st.integers(1, 50)), max_size=200))
def test_no_more_than_the_share_is_sent_twice(bursts: list[tuple[float, int]]) -> None:
    """Whole bursts of calls may be slow: when each is sent, none of the others has been sent twice yet."""
    hedges, twice, allowed = Hedges(), 0, 0.0
    for _ in range(ENOUGH):
        hedges.answered(PATH, 0.01)
    for share, calls in bursts:
        allowed += calls * min(share, LARGEST_SHARE)
        waits = [hedges.wait(PATH, share) for _ in range(calls)]
        assert share > 0 or not any(waits)
        twice += sum(wait is not None and hedges.spend() for wait in waits)
        assert twice <= allowed + 1e-6


def test_a_steady_share_is_used() -> None:
    hedges = Hedges()
    for _ in range(ENOUGH):
        hedges.answered(PATH, 0.01)
    assert sum(hedges.wait(PATH, 0.02) is not None and hedges.spend() for _ in range(10_000)) in range(198, 201)


@given(st.lists(st.floats(0.001, 1), min_size=ENOUGH, max_size=3 * ENOUGH))
def test_the_wait_is_longer_than_most_calls_took(took: list[float]) -> None:
    hedges = Hedges()
    for seconds in took:
        hedges.answered(PATH, seconds)
    waits = [hedges.wait(PATH, 0.02) for _ in range(100)]
    assert waits[-1] is not None
    assert 0.95 * len(took) <= sum(seconds <= waits[-1] for seconds in took)
    assert sum(seconds > waits[-1] for seconds in took) <= 0.05 * len(took)


def test_what_is_slow_is_learnt_path_by_path() -> None:
    hedges = Hedges()
    for _ in range(ENOUGH):
        assert hedges.wait(PATH, 0.02) is None
        hedges.answered(PATH, 0.01)
    for _ in range(100):
        hedges.wait(PATH, 0.02)
    assert hedges.wait(PATH, 0.02) == 0.01
    assert hedges.wait(ServingPath.THROUGHPUT, 0.02) is None
