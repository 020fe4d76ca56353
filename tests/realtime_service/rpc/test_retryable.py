"""Which failures of a call allow another attempt; when a client makes it is in `client/test_retry`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime_service.rpc.retryable import Failure, may_repeat


@given(st.lists(st.sampled_from(Failure), max_size=12))
def test_a_call_is_made_again_only_where_that_is_safe(failures: list[Failure]) -> None:
    safe = Failure.FINAL not in failures and failures.count(Failure.LOST) < 2 and failures.count(Failure.REFUSED) < 2
    assert may_repeat(failures) == safe


@pytest.mark.parametrize("failure", Failure)
def test_a_first_failure_allows_another_attempt_unless_it_is_final(failure: Failure) -> None:
    assert may_repeat([failure]) == (failure is not Failure.FINAL)
