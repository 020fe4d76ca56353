"""Is a model any good? A floor, chance and the active release, each refused by a line that names its setting."""

import json

import numpy as np
import pytest

from shared_model.evaluation import quality
from shared_model.evaluation.agreement import Truth
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.evaluation.quality import Quality
from shared_model.output import Floats, OutputKind, OutputSpec

LABELS = OutputSpec(OutputKind.SINGLE_LABEL, ("a", "b", "c"), 3)
SETS = OutputSpec(OutputKind.MULTI_LABEL, ("a", "b"), 2)
VALUES = OutputSpec(OutputKind.REGRESSION, ("stars",), 1)
BOUNDS = GateSettings()


def answers(truth: Truth, right: int) -> Floats:
    """Sure scores of three labels, of which the first `right` are right."""
    given = np.where(np.arange(len(truth)) < right, truth, (truth + 1) % 3)
    return np.eye(3, dtype=np.float32)[given]


def judged(truth: Truth, right: int, active: int | None = None, bounds: GateSettings = BOUNDS) -> Quality:
    rival = None if active is None else quality.baseline("old-1", LABELS, answers(truth, active), truth)
    return quality.judge(LABELS, answers(truth, right), truth, bounds, rival)


BALANCED = np.arange(300) % 3


@pytest.mark.parametrize(("right", "passes"), [(106, False), (113, False), (115, True), (300, True)])
def test_a_model_must_be_right_more_often_than_chance(right: int, passes: bool) -> None:
    """Of 300 texts with three labels 100 are right by chance, and 114 or more in one of twenty trials."""
    found = judged(BALANCED, right)
    assert (found.accuracy, found.chance) == (pytest.approx(right / 300), pytest.approx(1 / 3))
    assert (found.failures == ()) == passes
    if not passes:
        (failure,) = found.failures
        assert failure.startswith(f"fp32 reaches {right / 300:.2%} accuracy on 300 labelled texts, not clearly more")
        assert "than chance, 33.33% (p 0." in failure
        assert "TANDEM_GATE_BEAT_CHANCE" in failure
        assert judged(BALANCED, right, bounds=GateSettings(gate_beat_chance=False)).failures == ()


@pytest.mark.parametrize(("right", "passes"), [(80, False), (90, True)])
def test_chance_is_the_share_of_the_most_frequent_label(right: int, passes: bool) -> None:
    truth = np.array([1] * 80 + [0, 2] * 10)
    found = judged(truth, right)
    assert found.chance == 0.8
    assert (found.failures == ()) == passes


def test_texts_of_one_label_ask_for_one_in_k() -> None:
    """Their share of the most frequent label is 1, which no model exceeds."""
    assert judged(np.ones(30, np.int64), 30).chance == pytest.approx(1 / 3)
    assert judged(np.ones(30, np.int64), 30).failures == ()
    assert judged(np.ones(30, np.int64), 10).failures != ()


def test_a_few_texts_show_nothing() -> None:
    assert judged(np.array([0, 1]), 2).failures != ()


def test_of_several_labels_the_most_frequent_set_is_chance() -> None:
    truth = np.array([[True, False]] * 60 + [[False, False], [True, True]] * 20)
    always = np.tile(np.array([0.9, 0.1], np.float32), (100, 1))
    found = quality.judge(SETS, always, truth, BOUNDS, None)
    assert (found.measure, found.accuracy, found.chance) == ("exact match", 0.6, 0.6)
    assert "not clearly more than chance" in found.failures[0]
    assert quality.judge(SETS, truth.astype(np.float32), truth, BOUNDS, None).failures == ()


def test_a_regression_must_be_related_to_the_truth() -> None:
    truth = np.random.default_rng(3).normal(size=(60, 1))
    unrelated = np.random.default_rng(4).normal(size=(60, 1)).astype(np.float32)
    rival = quality.baseline("old-1", VALUES, truth.astype(np.float32), truth)
    found = quality.judge(VALUES, unrelated, truth, BOUNDS, rival)
    assert (found.chance, found.active_accuracy, found.active_p) == (0, pytest.approx(1), None)
    (failure,) = found.failures
    assert "rank correlation on 60 labelled texts, not clearly more than chance, 0.00%" in failure
    assert quality.judge(VALUES, truth.astype(np.float32), truth, BOUNDS, None).failures == ()


@pytest.mark.parametrize(("floor", "passes"), [(0.0, True), (0.9, True), (0.91, False)])
def test_a_floor_of_accuracy(floor: float, passes: bool) -> None:
    found = judged(BALANCED, 270, bounds=GateSettings(gate_min_accuracy=floor))
    says = "fp32 reaches 90.00% accuracy on 300 labelled texts, needs 91.00% (TANDEM_GATE_MIN_ACCURACY)"
    assert found.failures == (() if passes else (says,))


@pytest.mark.parametrize(
    ("right", "active", "refused"),
    [
        (290, 294, False),  # 1.33 points, p 0.125: luck
        (290, 296, True),  # 2 points, p 0.031
        (298, 300, False),  # 0.67 points are allowed
        (294, 290, False),  # better
    ],
)
def test_clearly_worse_than_the_active_release_is_refused(right: int, active: int, refused: bool) -> None:
    found = judged(BALANCED, right, active)
    assert found.active_accuracy == active / 300
    assert (found.failures != ()) == refused
    assert f"active release old-1 on these texts: {active / 300:.2%} (McNemar p" in list(found.in_words())[1]
    if refused:
        says = "2.00 points less than the active release old-1 (p 0.031), may be 1 (TANDEM_GATE_MAX_ACTIVE_DROP)"
        assert says in found.failures[0]
        assert judged(BALANCED, right, active, GateSettings(gate_max_active_drop=2)).failures == ()


def test_what_was_measured_is_json() -> None:
    found = judged(BALANCED, 270, 280)
    document = json.loads(json.dumps(found.to_document()))
    assert (document["accuracy"], document["active"], document["texts"]) == (0.9, "old-1", 300)
