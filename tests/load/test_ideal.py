"""The ideal queue and the search for a capacity, by properties; gaps of bursty arrivals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.load import arrivals, capacity, ideal

GAPS = st.lists(st.floats(0, 1), min_size=1, max_size=60)
RATES = st.floats(1, 1_000)
SECONDS = st.floats(0.001, 1)


@given(GAPS, RATES, SECONDS, SECONDS)
def test_no_queue_of_one_server_answers_more_calls_than_fit_into_the_time(
    gaps: list[float], rate: float, base: float, timeout: float
) -> None:
    sent = np.cumsum(gaps)
    answered = ideal.in_time(sent, rate, base, timeout) * len(sent)
    assert 0 <= answered <= len(sent) + 1e-9
    # All work lies between the first call and the last moment that is in time.
    assert answered <= max(0.0, (sent[-1] - sent[0] + timeout - base) * rate) + 1e-6


@given(GAPS, RATES, SECONDS, st.floats(0.001, 1), st.floats(0, 1))
def test_more_time_answers_no_fewer_calls(
    gaps: list[float], rate: float, base: float, timeout: float, more: float
) -> None:
    sent = np.cumsum(gaps)
    assert ideal.in_time(sent, rate, base, timeout + more) >= ideal.in_time(sent, rate, base, timeout)


def test_a_call_is_answered_exactly_if_it_would_end_in_time() -> None:
    # 100 calls a second, 5 ms on the way: of a burst at 80 ms, the first seven.
    burst = np.zeros(20)
    assert ideal.in_time(burst, 100, 0.005, 0.080) == 7 / 20
    assert ideal.in_time(np.arange(20) / 100, 100, 0.005, 0.015 + 1e-9) == 1
    assert ideal.in_time(np.arange(20) / 100, 100, 0.005, 0.014) == 0
    # Refused calls take no time: every second call of twice the rate is answered.
    assert ideal.in_time(np.arange(20) / 200, 100, 0.0, 0.010 + 1e-9) == pytest.approx(0.5)


@given(st.floats(1, 1_000), st.floats(0.3, 4))
def test_the_highest_rate_is_found_to_a_step(start: float, limit: float) -> None:
    tried = list[float]()

    def holds(rate: float) -> bool:
        tried.append(rate)
        return rate <= start * limit

    found = capacity.highest(start, holds)
    assert found is not None
    assert found <= start * limit < found * capacity.STEP * (1 + 1e-9)
    assert len(tried) <= 12


def test_without_any_rate_that_holds_there_is_no_highest() -> None:
    assert capacity.highest(100.0, lambda rate: False) is None


@given(st.sampled_from([1.0, 5.0, 13.0]), st.floats(10, 500), st.integers(0, 2**32))
def test_gamma_arrivals_come_at_their_rate(variation: float, rate: float, seed: int) -> None:
    due = arrivals.gamma(rate, variation, 20.0, seed)
    assert len(due) == round(rate * 20)
    assert due[0] == 0
    assert due[-1] <= 20.0 + 1e-9
    assert (np.diff(due) >= 0).all()
    assert (due == arrivals.gamma(rate, variation, 20.0, seed)).all()


@pytest.mark.parametrize("variation", [1.0, 5.0, 13.0])
def test_gaps_have_the_variation_that_was_asked_for(variation: float) -> None:
    # Of so rare long gaps only a long sample has all.
    assert arrivals.variation(arrivals.gamma(1_000, variation, 2_000.0, 3)) == pytest.approx(variation, rel=0.1)


@given(st.floats(0, 0.999))
def test_a_replay_may_start_anywhere_in_a_lap(start: float) -> None:
    recorded = np.array([0.0, 1.0, 5.0, 6.0])
    due = arrivals.replayed(recorded, 50.0, 60.0, start)
    assert len(due) == pytest.approx(50 * 60, abs=4)
    assert due[0] >= 0
    assert due[-1] < 60
    # A lap of 8 seconds is 4 calls at 50 a second: a gap of 1 second is one of 10 ms.
    assert set(np.round(np.diff(due) * 100, 3)) == {1, 2, 4}
