"""Judging scores: what counts as agreement for each kind of output, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared_model.evaluation import parity
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.evaluation.parity import Parity
from shared_model.evaluation.significance import LossRule
from shared_model.output import OutputKind, OutputSpec
from tests.properties import examples

Scores = NDArray[np.float32]
LABELS = OutputSpec(OutputKind.SINGLE_LABEL, ("a", "b", "c"), 3)
SETS = OutputSpec(OutputKind.MULTI_LABEL, ("a", "b"), 2)
VALUES = OutputSpec(OutputKind.REGRESSION, ("stars", "length"), 2)
VECTOR = OutputSpec(OutputKind.EMBEDDING, (), 4)

BOUNDS = GateSettings()
_random = np.random.default_rng(7)


def likely(texts: int, width: int) -> Scores:
    return _random.dirichlet([0.2] * width, texts).astype(np.float32)


REFERENCES: dict[OutputKind, tuple[OutputSpec, Scores]] = {
    OutputKind.SINGLE_LABEL: (LABELS, likely(200, 3)),
    OutputKind.MULTI_LABEL: (SETS, _random.random((200, 2)).astype(np.float32)),
    OutputKind.REGRESSION: (VALUES, _random.normal(3, 2, (200, 2)).astype(np.float32)),
    OutputKind.EMBEDDING: (VECTOR, _random.normal(0, 1, (200, 4)).astype(np.float32)),
}


def judge(output: OutputSpec, scores: Scores, reference: Scores, truth: NDArray | None = None) -> Parity:
    return parity.judge(output, scores, reference, truth, BOUNDS)


@pytest.mark.parametrize("kind", OutputKind)
def test_the_reference_agrees_with_itself(kind: OutputKind) -> None:
    output, reference = REFERENCES[kind]
    verdict = judge(output, reference, reference)
    assert verdict.passed
    assert (verdict.agreement, verdict.clear_agreement, verdict.max_difference) == (1, 1, 0)


@pytest.mark.parametrize("kind", OutputKind)
def test_another_models_scores_are_refused(kind: OutputKind) -> None:
    output, reference = REFERENCES[kind]
    verdict = judge(output, np.roll(reference, 1, axis=0), reference)
    assert any("of the reference" in f or "the reference" in f for f in verdict.failures)
    assert "TANDEM_GATE_MIN_AGREEMENT" in verdict.failures[0]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", OutputKind)
def test_one_value_that_is_not_finite_is_refused(kind: OutputKind, wrong: float) -> None:
    output, reference = REFERENCES[kind]
    scores = reference.copy()
    scores[3, 1] = wrong
    verdict = judge(output, scores, reference)
    assert verdict.failures[0] == "gives scores that are no numbers for 1 texts"
    assert not {"NaN", "Infinity"} & set(json.dumps(verdict.to_document()).replace(",", " ").split())


#: For each kind: a reference row, one that still agrees with it, one that does not any more.
EDGES: dict[OutputKind, tuple[OutputSpec, list[float], list[float], list[float]]] = {
    OutputKind.SINGLE_LABEL: (LABELS, [0.7, 0.2, 0.1], [0.41, 0.4, 0.19], [0.4, 0.41, 0.19]),
    OutputKind.MULTI_LABEL: (SETS, [0.9, 0.1], [0.5, 0.49], [0.49, 0.1]),
    OutputKind.EMBEDDING: (VECTOR, [1, 0, 0, 0], [1, 0.25, 0, 0], [1, 0.26, 0, 0]),
}


@pytest.mark.parametrize(
    ("texts", "wrong", "passed"),
    [(100, 2, True), (100, 3, False), (300, 5, True), (300, 6, False), (1000, 15, True), (1000, 16, False)],
)
@pytest.mark.parametrize("kind", EDGES)
def test_agreement_is_refused_where_its_upper_bound_is_too_low(
    kind: OutputKind, texts: int, wrong: int, passed: bool
) -> None:
    output, row, same, other = EDGES[kind]
    reference = np.tile(np.array(row, np.float32), (texts, 1))
    scores = np.tile(np.array(same, np.float32), (texts, 1))
    scores[:wrong] = other
    verdict = judge(output, scores, reference)
    assert verdict.passed == passed
    assert verdict.agreement == verdict.clear_agreement == 1 - wrong / texts


@pytest.mark.parametrize(("off", "agrees"), [(0.099, True), (0.101, False)])
def test_a_value_may_be_off_by_a_tenth_of_the_spread(off: float, agrees: bool) -> None:
    output, reference = REFERENCES[OutputKind.REGRESSION]
    scores = reference + np.array([0, off], np.float32) * reference.std(axis=0)
    assert judge(output, scores, reference).agreement == float(agrees)


def test_a_value_that_never_varies_must_be_met_exactly() -> None:
    constant = np.full((10, 2), 3.0, np.float32)
    assert judge(VALUES, constant, constant).passed
    assert not judge(VALUES, constant + np.float32(1e-3), constant).passed


@pytest.mark.parametrize(
    ("output", "unclear", "flipped"),
    [(LABELS, [0.45, 0.36, 0.19], [0.36, 0.45, 0.19]), (SETS, [0.9, 0.52], [0.9, 0.48])],
    ids=["labels", "sets"],
)
def test_without_labels_only_clear_texts_are_asked_for(
    output: OutputSpec, unclear: list[float], flipped: list[float]
) -> None:
    clear = EDGES[output.kind][1]
    reference = np.array([unclear] * 50 + [clear] * 50, np.float32)
    scores = np.array([flipped] * 50 + [clear] * 50, np.float32)
    truth = reference.argmax(1) if output is LABELS else reference >= 0.5
    assert judge(output, scores, reference).passed
    (failure,) = judge(output, scores, reference, truth).failures
    assert "for 50.00% of 100 labelled texts, needs 97.00% (TANDEM_GATE_MIN_LABELLED_AGREEMENT)" in failure


def test_texts_without_a_clear_label_prove_nothing() -> None:
    unclear = np.tile(np.array([0.34, 0.33, 0.33], np.float32), (50, 1))
    (failure,) = judge(LABELS, unclear, unclear).failures
    assert failure == "is never sure of a label (it looks untrained); pass --eval to judge it by accuracy"


@pytest.mark.parametrize(("wrong", "passed"), [(5, True), (6, False)])
@pytest.mark.parametrize("output", [LABELS, SETS], ids=["labels", "sets"])
def test_lost_accuracy_is_refused_even_where_agreement_is_high(output: OutputSpec, wrong: int, passed: bool) -> None:
    """Of five texts of 1,000, all lost, the loss is 0.5 points and may be chance: p is 0.016, and of six 0.008."""
    _, row, _, other = EDGES[output.kind]
    reference = np.tile(np.array(row, np.float32), (1000, 1))
    scores = reference.copy()
    scores[:wrong] = other
    truth = reference.argmax(1) if output is LABELS else reference >= 0.5
    verdict = judge(output, scores, reference, truth)
    assert verdict.accuracy == pytest.approx(1 - wrong / 1000)
    name = "accuracy" if output is LABELS else "exact match"
    line = f"loses 0.60 points of {name} (McNemar p 0.0078), may lose 0.3 (TANDEM_GATE_MAX_ACCURACY_DROP)"
    assert verdict.failures == (() if passed else (line,))


def test_a_significant_loss_within_the_bound_is_allowed() -> None:
    _, row, _, other = EDGES[OutputKind.SINGLE_LABEL]
    reference = np.tile(np.array(row, np.float32), (4000, 1))
    scores = reference.copy()
    scores[:12] = other
    verdict = judge(LABELS, scores, reference, reference.argmax(1))
    assert verdict.passed
    assert verdict.loss_p is not None
    assert verdict.loss_p < 0.001


def compared(same: int, lost: int = 0, gained: int = 0, other: int = 0, lost_clear: int = 0) -> Parity:
    """Labelled texts, of which the variant changes the label of some: it gets texts wrong that fp32 has right (`lost`),
    the reverse (`gained`), or both are wrong (`other`). fp32 is unsure of all of these but `lost_clear`."""
    clear, unclear, flipped = [0.7, 0.2, 0.1], [0.45, 0.4, 0.15], [0.4, 0.45, 0.15]
    changed = lost + gained + other
    reference = np.array([clear] * (same + lost_clear) + [unclear] * changed, np.float32)
    scores = np.array([clear] * same + [flipped] * (lost_clear + changed), np.float32)
    truth = np.array([0] * (same + lost_clear + lost) + [1] * gained + [2] * other)
    return judge(LABELS, scores, reference, truth)


def test_sampling_noise_refuses_no_model() -> None:
    """Of 1,076 texts INT8 loses 4 net and names fp32's label on 98.88 %, and on every one of which fp32 is sure."""
    verdict = compared(same=1064, lost=7, gained=3, other=2)
    assert (verdict.texts, verdict.clear_agreement, verdict.clear_bound) == (1076, 1, 1)
    assert verdict.agreement == pytest.approx(0.98885, abs=1e-5)
    assert verdict.accuracy_drop_points == pytest.approx(0.3717, abs=1e-4)
    assert verdict.mcnemar_p == pytest.approx(0.34375)
    assert verdict.discordance == 10 / 1076
    assert verdict.detected_points == (pytest.approx(0.854, abs=2e-3), pytest.approx(0.975, abs=2e-3))
    assert verdict.failures == ()


@pytest.mark.parametrize(("disagree", "passed"), [(30, True), (31, False)])
def test_labelled_texts_have_a_floor_and_others_none(disagree: int, passed: bool) -> None:
    verdict = compared(same=1000 - disagree, other=disagree)
    assert (verdict.failures == ()) == passed
    assert passed or "for 96.90% of 1000 labelled texts" in verdict.failures[0]


def test_few_labelled_texts_judge_no_accuracy_and_no_floor_that_they_cannot_show() -> None:
    few = compared(same=250, lost=9)
    assert few.loss_p == 0.5**10 < 0.01
    assert few.passed
    assert not few.judges_accuracy
    assert compared(same=300, lost=9).failures[0].startswith("loses 2.91 points of accuracy (McNemar p 0.0010)")
    assert not compared(same=200, other=20).passed


def test_added_texts_count_for_clear_agreement_alone() -> None:
    _, row, _, other = EDGES[OutputKind.SINGLE_LABEL]
    reference = np.tile(np.array(row, np.float32), (400, 1))
    scores, truth = reference.copy(), np.zeros(100, int)
    scores[100:110] = other
    verdict = parity.judge(LABELS, scores, reference, truth, BOUNDS, own=100)
    assert (verdict.texts, verdict.agreement, verdict.accuracy) == (100, 1, 1)
    assert (verdict.clear_texts, verdict.labelled_clear, verdict.clear_agreement) == (400, 100, 0.975)
    assert "for 97.50% of 400 texts with a clear label" in verdict.failures[0]


COUNTS = st.integers(0, 40)


@given(st.integers(250, 700), COUNTS, COUNTS, COUNTS, COUNTS)
@settings(max_examples=examples(60), deadline=None)
def test_more_agreement_never_turns_a_pass_into_a_refusal(
    same: int, lost: int, gained: int, other: int, lost_clear: int
) -> None:
    if not compared(same, lost, gained, other, lost_clear).passed:
        return
    if lost:
        assert compared(same + 1, lost - 1, gained, other, lost_clear).passed
    if other:
        assert compared(same + 1, lost, gained, other - 1, lost_clear).passed
    if lost_clear:
        assert compared(same + 1, lost, gained, other, lost_clear - 1).passed


@given(st.integers(400, 1500), st.integers(0, 30), st.integers(0, 30))
@settings(max_examples=examples(60), deadline=None)
def test_the_error_rates_are_those_of_the_gate(same: int, lost: int, gained: int) -> None:
    """They count a variant as refused from a number of lost texts on; the gate refuses it from there on."""
    fewest = LossRule(same + lost + gained, BOUNDS.gate_max_accuracy_drop)._fewest_lost[lost + gained]
    refused = any(failure.startswith("loses ") for failure in compared(same, lost, gained).failures)
    assert refused == (lost >= fewest)


def test_a_regressions_accuracy_is_its_rank_correlation() -> None:
    """Spearman's: 1 for any growing function of the truth, and what is lost of it counts."""
    reference = np.arange(100, dtype=np.float32)[:, None]
    output = replace(VALUES, names=("stars",), width=1)
    verdict = judge(output, reference, reference, np.exp(reference / 10))
    assert (verdict.accuracy, verdict.mcnemar_p) == (pytest.approx(1), None)
    # Neighbours change places: every value is within a tenth of the spread (28.9), the ranks are not the same any more.
    swapped = reference.reshape(-1, 2)[:, ::-1].reshape(-1, 1)
    lost = judge(output, swapped, reference, reference)
    assert lost.accuracy == pytest.approx(1 - 6 * 100 / (100 * (100**2 - 1)))
    assert lost.passed
    assert not judge(output, reference[::-1], reference, reference).passed
    constant = judge(output, np.zeros_like(reference), reference, reference)
    assert constant.accuracy == 0
    # Without right and wrong there is no McNemar test: the bound alone counts, where there are enough texts.
    values = np.arange(400, dtype=np.float32)[:, None]
    shifted = values + np.where(values % 2, 30, -30).astype(np.float32)
    assert "points of rank correlation, may lose 0.3" in judge(output, shifted, values, values).failures[0]


@pytest.mark.parametrize("bound", [0.9, 1.0])
def test_bounds_are_settings(bound: float) -> None:
    _, row, _, other = EDGES[OutputKind.SINGLE_LABEL]
    reference, scores = (np.tile(np.array(row, np.float32), (100, 1)) for _ in range(2))
    scores[:5] = other
    assert parity.judge(LABELS, scores, reference, None, GateSettings(gate_min_agreement=bound)).passed == (
        bound < 0.95
    )


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [(0, 0, 1.0), (5, 5, 1.0), (1, 9, 0.021484375), (9, 1, 0.021484375), (0, 5, 0.0625), (3, 12, 0.03515625)],
)
def test_mcnemar_is_the_exact_test_on_texts_that_differ(gained: int, lost: int, p: float) -> None:
    """p = 2 · P(X ≤ min(gained, lost)) of a fair coin, at most 1; texts on which both agree change nothing."""
    right = np.array([True] * gained + [False] * lost + [True] * 40 + [False] * 7)
    reference_right = np.array([False] * gained + [True] * lost + [True] * 40 + [False] * 7)
    assert parity.mcnemar_p(right, reference_right) == pytest.approx(p, abs=1e-12)
