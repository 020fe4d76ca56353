"""Temperature, expected calibration error and thresholds, on probabilities whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared_model.evaluation import calibration
from shared_model.evaluation.agreement import Truth
from shared_model.output import OutputKind, OutputSpec
from tests.properties import examples

LABELS = OutputSpec(OutputKind.SINGLE_LABEL, ("a", "b", "c", "d"), 4)
SETS = OutputSpec(OutputKind.MULTI_LABEL, ("a", "b"), 2)
KINDS = [LABELS, SETS]
TEXTS = [f"text {number}" for number in range(3000)]
FOLDS = calibration.folds_of(TEXTS)


def model(output: OutputSpec, times: float, seed: int = 1) -> tuple[NDArray[np.float32], Truth]:
    """Scores of a model whose raw outputs are `times` too large, and a truth drawn from the right probabilities."""
    drawn = np.random.default_rng(seed)
    raw = drawn.normal(0, 2, (len(TEXTS), output.width)).astype(np.float32)
    exact = output.scores(raw)
    if output.kind is OutputKind.MULTI_LABEL:
        truth = drawn.random(exact.shape) < exact
    else:
        truth = (drawn.random((len(exact), 1)) > exact.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return output.scores(raw * np.float32(times)), truth


@pytest.mark.parametrize("output", KINDS, ids=lambda it: it.kind)
@given(times=st.floats(0.3, 3), seed=st.integers(0, 1000))
@settings(max_examples=examples(8), deadline=None)
def test_a_temperature_undoes_raw_outputs_that_are_too_large(output: OutputSpec, times: float, seed: int) -> None:
    scores, truth = model(output, times, seed)
    assert calibration.fit_temperature(output, scores, truth) == pytest.approx(times, rel=0.1)


@pytest.mark.parametrize("output", KINDS, ids=lambda it: it.kind)
@pytest.mark.parametrize("times", [0.4, 2.5])
def test_the_error_is_large_before_and_after_it_as_by_chance(output: OutputSpec, times: float) -> None:
    scores, truth = model(output, times)
    fitted = replace(output, temperature=calibration.fit_temperature(output, scores, truth))
    found = calibration.measure(fitted, scores, truth, FOLDS)
    assert found.cross_fitted
    assert found.ece_after <= found.ece_perfect * 1.3 < found.ece_before
    assert sum(it.count for it in found.bins) == truth.size
    again = calibration.measure(fitted, scores, truth)
    assert not again.cross_fitted
    assert again.ece_after == pytest.approx(found.ece_after, abs=0.005)


def test_a_fold_is_calibrated_without_its_own_texts() -> None:
    """Wrong labels in one fold change all folds but that one."""
    scores, truth = model(LABELS, 2)
    before = calibration.cross_fitted(LABELS, scores, truth, FOLDS)
    truth[FOLDS == 3] = (truth[FOLDS == 3] + 1) % 4
    after = calibration.cross_fitted(LABELS, scores, truth, FOLDS)
    for fold in range(calibration.FOLDS):
        assert (before[fold == FOLDS] == after[fold == FOLDS]).all() == (fold == 3)


def test_folds_depend_on_the_text_alone() -> None:
    assert (calibration.folds_of(TEXTS[::-1]) == FOLDS[::-1]).all()
    assert np.bincount(FOLDS).min() > 500
    assert calibration.folds_of([("a", "b"), ("a", "b")]).tolist() == [calibration.folds_of([("a", "b")])[0]] * 2


@pytest.mark.parametrize("output", KINDS, ids=lambda it: it.kind)
def test_texts_that_are_all_right_do_not_determine_a_temperature(output: OutputSpec) -> None:
    scores, _ = model(output, 1)
    truth = scores.argmax(axis=1) if output is LABELS else scores >= 0.5
    assert calibration.fit_temperature(output, scores, truth) == 1
    assert calibration.fit_temperature(output, scores[:0], truth[:0]) == 1


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1))
def test_the_error_is_that_of_its_definition(claims: list[tuple[float, bool]]) -> None:
    bins: dict[int, list[tuple[float, bool]]] = {}
    for probability, true in claims:
        bins.setdefault(min(int(probability * 15), 14), []).append((probability, true))
    expected = sum(abs(sum(p for p, _ in held) - sum(t for _, t in held)) for held in bins.values()) / len(claims)
    probabilities, true = np.array([p for p, _ in claims]), np.array([t for _, t in claims])
    assert calibration.ece(probabilities, true) == pytest.approx(expected, abs=1e-9)
    assert 0 <= calibration.perfect_ece(probabilities) <= 1


def test_the_error_by_chance_is_what_exact_probabilities_show() -> None:
    drawn = np.random.default_rng(5)
    probabilities = drawn.beta(4, 1, 1000)
    errors = [calibration.ece(probabilities, drawn.random(1000) < probabilities) for _ in range(2000)]
    assert calibration.perfect_ece(probabilities) == pytest.approx(np.quantile(errors, 0.95), rel=0.05)


@pytest.mark.parametrize("output", KINDS, ids=lambda it: it.kind)
def test_a_threshold_is_the_least_that_reaches_the_precision(output: OutputSpec) -> None:
    scores, truth = model(output, 2)
    threshold, best = calibration.threshold_for(output, scores, truth, FOLDS, 0.9)
    assert threshold is not None
    assert best >= 0.9
    abstaining = replace(output, temperature=2.0, abstain_below=threshold)
    found = calibration.measure(abstaining, scores, truth, FOLDS)
    assert found.answered
    assert found.answered.accuracy > 0.9 > found.curve[0].accuracy
    assert 0 < found.answered.coverage < 1
    unreachable, best = calibration.threshold_for(output, scores, truth, FOLDS, 0.99999)
    assert unreachable is None
    assert best < 0.99999


def test_the_curve_gives_up_texts_for_accuracy() -> None:
    curve = calibration.measure(LABELS, *model(LABELS, 1)).curve
    assert [it.coverage for it in curve] == pytest.approx([1, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.25], abs=0.001)
    assert [it.confidence for it in curve] == sorted(it.confidence for it in curve)
    assert [it.accuracy for it in curve] == sorted(it.accuracy for it in curve)
