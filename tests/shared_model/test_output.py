"""One output contract for labels, values and embeddings."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_model.output import OutputKind, OutputSpec

LETTERS = tuple("abcdef")
finite = st.floats(-1e4, 1e4, width=32)
rows = st.lists(st.lists(finite, min_size=6, max_size=6), min_size=1, max_size=5)


def output(kind: OutputKind) -> OutputSpec:
    return OutputSpec(kind, () if kind is OutputKind.EMBEDDING else LETTERS, len(LETTERS))


@given(rows)
def test_a_single_label_is_a_distribution_that_does_not_overflow(raw: list[list[float]]) -> None:
    scores = output(OutputKind.SINGLE_LABEL).scores(np.array(raw, np.float32))
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(scores.sum(axis=1), 1.0, rtol=1e-5)
    best = np.array(raw, np.float32).argmax(1)
    assert (scores[np.arange(len(raw)), best] == scores.max(axis=1)).all()


@given(rows)
def test_each_of_many_labels_is_a_probability_of_its_own(raw: list[list[float]]) -> None:
    logits = np.array(raw, np.float32)
    scores = output(OutputKind.MULTI_LABEL).scores(logits)
    assert scores.dtype == np.float32
    assert ((scores >= 0) & (scores <= 1)).all()
    moderate = np.abs(logits) < 30
    np.testing.assert_allclose(scores[moderate], 1 / (1 + np.exp(-logits[moderate])), atol=1e-6)


@pytest.mark.parametrize("kind", [OutputKind.REGRESSION, OutputKind.EMBEDDING])
@given(raw=rows, k=st.integers(1, 9))
def test_values_and_embeddings_come_as_they_are_and_whole(kind: OutputKind, raw: list[list[float]], k: int) -> None:
    it, numbers = output(kind), np.array(raw, np.float32)
    indices, values = it.best(it.scores(numbers), k)
    assert (values == numbers).all()
    assert (indices == np.arange(6)).all()
    assert it.kept(k) == 6


@pytest.mark.parametrize("kind", [OutputKind.SINGLE_LABEL, OutputKind.MULTI_LABEL])
@pytest.mark.parametrize("times", [1, 256])
@given(scores=st.lists(st.lists(st.floats(0, 1, width=32), min_size=6, max_size=6), min_size=1), k=st.integers(1, 9))
def test_the_best_labels_are_the_head_of_a_stable_ranking(
    kind: OutputKind, times: int, scores: list[list[float]], k: int
) -> None:
    indices, values = output(kind).best(np.array(scores * times, np.float32), k)
    assert indices.shape == values.shape == (len(scores) * times, output(kind).kept(k))
    assert indices.dtype == np.int32
    for row, best, value in zip(scores, indices[-len(scores) :], values[-len(scores) :], strict=True):
        ranked = sorted(range(6), key=lambda index: -row[index])
        assert list(best) == ranked[:k]
        assert list(value) == [np.float32(row[index]) for index in ranked[:k]]


@pytest.mark.parametrize("kind", OutputKind)
@pytest.mark.parametrize("times", [1, 50])
@given(
    scores=st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=6, max_size=6), min_size=1, max_size=3),
    k=st.integers(1, 9),
    below=st.none() | st.sampled_from([0.1, 0.5]),
)
def test_answers_are_the_best_scores_of_few_rows_and_of_many(
    kind: OutputKind, times: int, scores: list[list[float]], k: int, below: float | None
) -> None:
    ranked = kind in (OutputKind.SINGLE_LABEL, OutputKind.MULTI_LABEL)
    spec = replace(
        output(kind),
        abstain_below=below if ranked else None,
        abstain_on=("b", "c") if kind is OutputKind.SINGLE_LABEL else (),
    )
    all_scores = np.array(scores * times, np.float32)
    indices, values = spec.best(all_scores, k)
    answers = spec.answers(all_scores, k)
    assert [list(answer[0]) for answer in answers] == indices.tolist()
    assert [answer[1] for answer in answers] == values.tolist()
    assert [answer[2] for answer in answers] == spec.abstained(all_scores).tolist()


@pytest.mark.parametrize(
    ("kind", "names", "width"),
    [
        (OutputKind.SINGLE_LABEL, ("only",), 1),
        (OutputKind.SINGLE_LABEL, ("a", "a"), 2),
        (OutputKind.SINGLE_LABEL, ("a", "b"), 3),
        (OutputKind.MULTI_LABEL, (), 0),
        (OutputKind.REGRESSION, (), 1),
        (OutputKind.EMBEDDING, ("a", "b"), 2),
        (OutputKind.EMBEDDING, (), 0),
    ],
)
def test_an_output_that_cannot_be_is_refused(kind: OutputKind, names: tuple[str, ...], width: int) -> None:
    with pytest.raises(ValueError, match="cannot have"):
        OutputSpec(kind, names, width)


LABELLED = [OutputKind.SINGLE_LABEL, OutputKind.MULTI_LABEL]
temperatures = st.floats(0.05, 20)


@pytest.mark.parametrize("kind", LABELLED)
@given(raw=st.lists(st.lists(st.floats(-12, 12, width=32), min_size=6, max_size=6), min_size=1), times=temperatures)
def test_a_temperature_divides_the_raw_outputs(kind: OutputKind, raw: list[list[float]], times: float) -> None:
    plain, numbers = output(kind), np.array(raw, np.float32)
    calibrated = replace(plain, temperature=times)
    scores = calibrated.scores(numbers)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, plain.scores(numbers / np.float32(times)), atol=1e-6)
    # From probabilities at temperature 1 alone, as precisely as fp32 holds those.
    np.testing.assert_allclose(calibrated.recalibrated(plain.scores(numbers)), scores, atol=0.02)
    # The best label stays the best.
    assert (scores[np.arange(len(raw)), numbers.argmax(1)] == scores.max(axis=1)).all()
    assert calibrated.uncalibrated == plain


@pytest.mark.parametrize("kind", LABELLED)
@given(
    scores=st.lists(st.lists(st.floats(0, 1, width=32), min_size=6, max_size=6), min_size=1), below=st.floats(0.01, 1)
)
def test_an_answer_abstains_below_its_confidence(kind: OutputKind, scores: list[list[float]], below: float) -> None:
    it, numbers = replace(output(kind), abstain_below=below), np.array(scores, np.float32)
    for row, abstained in zip(numbers, it.abstained(numbers), strict=True):
        sure = max(row) if kind is OutputKind.SINGLE_LABEL else min(max(p, 1 - p) for p in row)
        assert abstained == (sure < np.float32(below))
    assert not output(kind).abstained(numbers).any()


def test_an_answer_abstains_on_labels_that_stand_for_none() -> None:
    it = OutputSpec(OutputKind.SINGLE_LABEL, ("card", "other", "none"), 3, abstain_on=("other", "none"))
    scores = np.array([[0.9, 0.1, 0], [0.3, 0.6, 0.1], [0.1, 0.1, 0.8]], np.float32)
    assert it.abstained(scores).tolist() == [False, True, True]
    assert replace(it, abstain_below=0.95).abstained(scores).tolist() == [True, True, True]
    assert (it.abstains, it.abstaining) == (True, "on other, none")
    assert replace(it, abstain_below=0.95).abstaining == "below 0.95 and on other, none"
    assert it.uncalibrated.abstaining == "never"


@pytest.mark.parametrize("on", [("nothing",), ("card", "other")])
def test_labels_that_no_answer_can_abstain_on_are_refused(on: tuple[str, ...]) -> None:
    """Unknown ones, and all of them."""
    for kind, names in ((OutputKind.SINGLE_LABEL, ("card", "other")), (OutputKind.MULTI_LABEL, ("card", "other", "c"))):
        with pytest.raises(ValueError, match=f"cannot abstain on {', '.join(on)}"):
            OutputSpec(kind, names, len(names), abstain_on=on)


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"temperature": float("nan")}, {"abstain_below": 0.0}])
def test_a_calibration_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="temperature"):
        replace(output(OutputKind.SINGLE_LABEL), **wrong)
    with pytest.raises(ValueError, match="no probabilities"):
        replace(output(OutputKind.REGRESSION), temperature=2.0)
