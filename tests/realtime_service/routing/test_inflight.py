"""The bytes of requests under way: bounded in all and for each caller, and given back however a request ends."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime_service.errors import Overloaded, status_of
from realtime_service.routing.inflight import Inflight

MOST, MOST_OF_CALLER = 1000, 400
callers = st.sampled_from([None, "a", "b", "c", "d"])


@given(st.lists(st.tuples(callers, st.integers(1, 400), st.booleans())))
def test_neither_all_nor_one_caller_holds_more_than_its_share(requests: list[tuple[str | None, int, bool]]) -> None:
    """Requests come, and some of those under way end, in any order."""
    inflight, under_way = Inflight("bytes", MOST, MOST_OF_CALLER), list[tuple[str | None, int, contextlib.ExitStack]]()
    for caller, size, ends in requests:
        of_all = sum(held for _, held, _ in under_way)
        of_caller = sum(held for name, held, _ in under_way if name == caller and name is not None)
        fits = of_all + size <= MOST and (caller is None or of_caller + size <= MOST_OF_CALLER)
        stack = contextlib.ExitStack()
        try:
            stack.enter_context(inflight.holding(caller, size))
        except Overloaded:
            assert not fits
        else:
            assert fits
            under_way.append((caller, size, stack))
        if ends and under_way:
            under_way.pop(len(under_way) // 2)[2].close()
        assert inflight.held == sum(held for _, held, _ in under_way)


def test_a_refusal_says_when_to_come_back_and_is_counted() -> None:
    refusals: list[None] = []
    inflight = Inflight("bytes", MOST, MOST_OF_CALLER, refused=lambda: refusals.append(None))
    with inflight.holding("a", 300), pytest.raises(Overloaded) as refused, inflight.holding("a", 200):
        pass
    status = status_of(refused.value)
    assert (status.code.name, status.retry_after) == ("RESOURCE_EXHAUSTED", 0.1)
    assert len(refusals) == 1


def test_bytes_are_given_back_by_a_request_that_fails() -> None:
    inflight = Inflight("bytes", MOST, MOST_OF_CALLER)
    with pytest.raises(ZeroDivisionError), inflight.holding("a", 400):
        raise ZeroDivisionError
    assert inflight.held == 0
    with inflight.holding("a", 400):
        pass


def test_a_request_larger_than_the_bound_is_taken_alone() -> None:
    inflight = Inflight("bytes", 10, 5)
    with inflight.holding("a", 100):
        pass
