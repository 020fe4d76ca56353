"""Judging scores: what counts as agreement for each kind of output, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from shared_model.evaluation import parity
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.evaluation.parity import Parity
from shared_model.output import OutputKind, OutputSpec

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


@pytest.mark.parametrize(("wrong_texts", "passed"), [(0, True), (1, True), (2, False)])
@pytest.mark.parametrize("kind", EDGES)
def test_one_text_in_a_hundred_may_differ(kind: OutputKind, wrong_texts: int, passed: bool) -> None:
    output, row, same, other = EDGES[kind]
    reference = np.tile(np.array(row, np.float32), (100, 1))
    scores = np.tile(np.array(same, np.float32), (100, 1))
    scores[:wrong_texts] = other
    verdict = judge(output, scores, reference)
    assert verdict.passed == passed
    assert verdict.agreement == 1 - wrong_texts / 100


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
    verdict = judge(output, scores, reference, truth)
    assert "for 50.00% of texts, needs 99.00%" in verdict.failures[1]


def test_texts_without_a_clear_label_prove_nothing() -> None:
    unclear = np.tile(np.array([0.34, 0.33, 0.33], np.float32), (50, 1))
    (failure,) = judge(LABELS, unclear, unclear).failures
    assert failure == "is never sure of a label (it looks untrained); pass --eval to judge it by accuracy"


@pytest.mark.parametrize(("wrong", "passed"), [(3, True), (4, False)])
@pytest.mark.parametrize("output", [LABELS, SETS], ids=["labels", "sets"])
def test_lost_accuracy_is_refused_even_where_agreement_is_high(output: OutputSpec, wrong: int, passed: bool) -> None:
    _, row, _, other = EDGES[output.kind]
    reference = np.tile(np.array(row, np.float32), (1000, 1))
    scores = reference.copy()
    scores[:wrong] = other
    truth = reference.argmax(1) if output is LABELS else reference >= 0.5
    verdict = judge(output, scores, reference, truth)
    assert verdict.accuracy == pytest.approx(1 - wrong / 1000)
    name = "accuracy" if output is LABELS else "exact match"
    assert passed or verdict.failures == (f"loses 0.40 points of {name}, may lose 0.3 (TANDEM_GATE_MAX_ACCURACY_DROP)",)
    assert verdict.passed == passed


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
