"""Rows over time: none is lost, and none comes before its file was begun."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_job.checks.pace import PARTS, pace

files = st.lists(
    st.tuples(st.floats(1e9, 1e9 + 1e4), st.floats(0.01, 1e3), st.integers(0, 100_000)).map(
        lambda it: (it[0], it[0] + it[1], it[2])
    )
)


@given(files)
def test_all_rows_are_in_it(written: list[tuple[float, float, int]]) -> None:
    seconds, rates = pace(written)
    total = sum(rows for _, _, rows in written)
    # Rates are rounded to a tenth.
    assert sum(rates) * seconds == pytest.approx(total, rel=1e-3, abs=0.05 * PARTS * seconds)
    assert len(rates) == (PARTS if total else 0)
    assert all(rate >= 0 for rate in rates)


def test_two_workers_are_twice_as_fast_as_one() -> None:
    _, rates = pace([(100.0, 160.0, 6_000), (130.0, 160.0, 3_000)])
    assert rates[:30] == (100.0,) * 30
    assert rates[30:] == (200.0,) * 30


def test_a_file_that_does_not_say_when_is_left_out() -> None:
    assert pace([(0.0, 0.0, 5), (0.0, 0.0, 0)]) == (0.0, ())
