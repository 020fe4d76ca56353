"""The verdict on timed calls: the median of the tries counts, and a mark changes only where the difference is clear."""

import pytest

from realtime_service.models.latency_budgets import Timing, judge, newly_slow
from shared_model.evaluation.benchmark import Budget
from shared_model.types import Precision

BUDGET = Budget(64, 32, 500.0, "TANDEM_GATE_BATCH_MS")


def timing(milliseconds: float) -> Timing:
    return Timing(milliseconds, BUDGET, milliseconds > BUDGET.milliseconds)


@pytest.mark.parametrize(
    ("tries", "before", "slow"),
    [
        ([499, 499, 900], None, False),  # one pause of the host
        ([100, 501, 501], None, True),
        ([501, 501, 501], timing(400), True),
        # A slow one is fast again only clearly below its budget.
        ([499, 499, 499], timing(600), True),
        ([450, 450, 450], timing(600), False),
    ],
)
def test_the_median_counts_and_a_mark_has_hysteresis(tries: list[float], before: Timing | None, slow: bool) -> None:
    found = judge(tries, BUDGET, before)
    assert found.slow is slow
    assert found.milliseconds == sorted(tries)[1]


@pytest.mark.parametrize(
    ("new", "active", "refused"),
    [
        (860, 400, True),
        (860, 860, False),  # slow before, slow after: no lane is lost
        (860, None, False),  # a restart: no release answers yet
        (510, 495, False),  # no clear difference
        (490, 100, False),
    ],
)
def test_only_a_lane_that_meets_its_budget_can_be_lost(new: float, active: float | None, refused: bool) -> None:
    now = {} if active is None else {Precision.BF16: timing(active)}
    assert bool(newly_slow({Precision.BF16: timing(new)}, now)) is refused


def test_a_timing_says_what_takes_how_long_and_which_setting_bounds_it() -> None:
    said = "takes 860.1 ms for 64×32 tokens here, its lane allows 500 ms (TANDEM_GATE_BATCH_MS)"
    assert str(timing(860.12)) == said
