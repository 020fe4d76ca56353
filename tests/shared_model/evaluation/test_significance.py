"""The gate's statistics: published values, brute force, and the error rates that its rules promise."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, multinomial

from shared_model.evaluation.significance import SIGNIFICANT_LOSS, LossRule, agreement_refused, loss_p, wilson_upper
from tests.properties import examples


def test_the_bound_of_a_share_is_wilsons() -> None:
    for successes, trials in ((0, 10), (7, 10), (81, 263), (297, 300), (1064, 1076), (3079, 3080)):
        # A two-sided interval of 90 % has one-sided bounds of 95 %.
        published = binomtest(successes, trials).proportion_ci(0.90, method="wilson").high
        assert wilson_upper(successes, trials) == pytest.approx(published, abs=1e-12)
    square = 1.6448536269514722**2
    assert wilson_upper(0, 50) == pytest.approx(square / (50 + square), abs=1e-12)
    assert wilson_upper(50, 50) == 1


@given(st.integers(1, 5000), st.data())
@settings(max_examples=examples(100))
def test_the_bound_grows_with_the_share_and_lies_above_it(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials - 1))
    assert successes / trials < wilson_upper(successes, trials) < wilson_upper(successes + 1, trials) <= 1


def test_a_loss_is_tested_by_mcnemars_mid_p() -> None:
    """Fagerland, Lydersen and Laake (2013): of 1 and 7 discordant pairs the two-sided mid-p value is 0.039."""
    assert 2 * loss_p(1, 7) == pytest.approx(10 / 256, abs=1e-12)
    assert loss_p(0, 0) == loss_p(4, 4) == pytest.approx(0.5)
    assert loss_p(0, 5) == pytest.approx(0.5**6)


@given(st.integers(0, 20), st.integers(0, 20))
@settings(max_examples=examples(100))
def test_more_losses_are_more_significant_and_more_gains_less(gained: int, lost: int) -> None:
    assert loss_p(gained, lost + 1) < loss_p(gained, lost) < loss_p(gained + 1, lost)


@pytest.mark.parametrize(("discordance", "loss"), [(0.0, 0.0), (0.1, 0.0), (0.3, 0.1), (0.1, 0.25)])
def test_error_rates_are_those_of_every_outcome_of_a_small_set(discordance: float, loss: float) -> None:
    texts, allowed = 40, 5.0
    share = max(discordance, loss)
    chances = [(share - loss) / 2, (share + loss) / 2, 1 - share]
    expected = sum(
        multinomial.pmf([gained, lost, texts - gained - lost], texts, chances)
        for gained in range(texts + 1)
        for lost in range(texts + 1 - gained)
        if lost - gained > 2 and loss_p(gained, lost) <= SIGNIFICANT_LOSS
    )
    assert LossRule(texts, allowed).refused(discordance, loss) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("texts", "refused"), [(300, 0.005), (1000, 0.0005), (3000, 0.0005)])
def test_true_agreement_of_995_in_a_thousand_is_rarely_refused(texts: int, refused: float) -> None:
    assert agreement_refused(texts, 0.995, 0.99) < refused
    assert agreement_refused(texts, 0.96, 0.99) > 0.9


@pytest.mark.parametrize(("discordance", "caught"), [(0.015, 0.99), (0.020, 0.95), (0.025, 0.88)])
def test_a_loss_of_one_point_is_caught_on_3000_texts(discordance: float, caught: float) -> None:
    assert LossRule(3000, 0.3).refused(discordance, 0.01) == pytest.approx(caught, abs=0.005)


@pytest.mark.parametrize("texts", [300, 1000, 1076, 3000])
def test_a_variant_without_loss_is_refused_at_most_in_11_of_1000_cases(texts: int) -> None:
    assert max(LossRule(texts, 0.3).refused(step / 1000, 0.0) for step in range(5, 31)) <= 0.011


@given(st.integers(50, 4000), st.floats(0, 0.05))
@settings(max_examples=examples(20), deadline=None)
def test_the_loss_that_is_detected_is_the_smallest(texts: int, discordance: float) -> None:
    rule = LossRule(texts, 0.3)
    found, surer = rule.detected(discordance, 0.80), rule.detected(discordance, 0.95)
    assert found is not None
    assert surer is not None
    assert found <= surer
    assert rule.refused(discordance, found / 100) >= 0.80
    assert rule.refused(discordance, found / 100 - 2e-5) < 0.80


def test_too_few_texts_show_no_loss() -> None:
    assert LossRule(5, 0.3).detected(0.0, 0.80) is None
    # Six lost texts of six are significant.
    assert loss_p(0, 6) < SIGNIFICANT_LOSS < loss_p(0, 5)
    assert math.isclose(LossRule(6, 0.3).detected(0.0, 0.80) or 0, 100 * 0.8 ** (1 / 6), abs_tol=0.01)
