"""Which failures of a call allow another attempt, and the budget that bounds them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime_service.rpc.retryable import Failure, RetryBudget, may_repeat


@given(st.lists(st.sampled_from(Failure), max_size=12))
def test_a_call_is_made_again_only_where_that_is_safe(failures: list[Failure]) -> None:
    safe = Failure.FINAL not in failures and failures.count(Failure.LOST) < 2 and failures.count(Failure.REFUSED) < 2
    assert may_repeat(failures) == safe


@pytest.mark.parametrize("failure", Failure)
def test_a_first_failure_allows_another_attempt_unless_it_is_final(failure: Failure) -> None:
    assert may_repeat([failure]) == (failure is not Failure.FINAL)


@given(st.lists(st.booleans(), max_size=600))
def test_calls_made_again_are_a_tenth_of_the_answered_and_ten(answered: list[bool]) -> None:
    budget, again = RetryBudget(), 0
    for number, it in enumerate(answered):
        if it:
            budget.earn()
        else:
            again += budget.spend()
        assert again <= 10 + 0.1 * sum(answered[: number + 1])


def test_a_long_quiet_time_saves_up_a_hundred() -> None:
    budget = RetryBudget()
    for _ in range(10_000):
        budget.earn()
    assert sum(budget.spend() for _ in range(200)) == 100
