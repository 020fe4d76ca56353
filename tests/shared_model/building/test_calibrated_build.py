"""A build with labelled texts: its temperature is part of the release, and changes no agreement or accuracy."""

from dataclasses import replace

import numpy as np
import pytest

from shared_model.building import build
from shared_model.building.checkpoint import Checkpoint
from shared_model.errors import BadInput
from shared_model.evaluation import corpora, gate, report
from shared_model.evaluation.calibration import Abstain
from shared_model.evaluation.corpora import Texts
from shared_model.evaluation.verdict import ReleaseReport
from shared_model.heads import DEFAULT_HEAD
from shared_model.releases.store import Release, Store
from shared_model.types import Precision
from tests.shared_model import tiny_builds

pytestmark = pytest.mark.heavy

#: The one at which the tiny model's probabilities are right.
TEMPERATURE = 3.0


@pytest.fixture(scope="module")
def texts(tiny: tuple[Release, ReleaseReport], tiny_checkpoint: Checkpoint) -> Texts:
    """Labelled as the model's probabilities at another temperature say: at 1 they are too high."""
    chosen, release = tiny_builds.few_texts(tiny_checkpoint), tiny[0]
    evaluator = gate.release_evaluator(release, chosen.gate, tiny_builds.BOUNDS)
    scores = evaluator.own(evaluator.reference)[: len(chosen.gate.texts)]
    exact = replace(release.output, temperature=TEMPERATURE).recalibrated(scores)
    drawn = np.random.default_rng(3).random((len(exact), 1))
    truth = (drawn > exact.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return replace(chosen, gate=replace(chosen.gate, source=corpora.LABELLED, truth=truth))


@pytest.fixture(scope="module")
def calibrated(
    texts: Texts, tiny_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Release, ReleaseReport]:
    store, abstain = Store(tmp_path_factory.mktemp("calibrated")), {DEFAULT_HEAD: Abstain(below=0.75)}
    made = build.make(store, tiny_checkpoint, "tiny", texts, tiny_builds.BOUNDS, lambda line: None, abstain)
    return store.open(made.release.id), made.judged(lambda line: None)


def test_the_temperature_and_the_threshold_are_part_of_the_release(
    calibrated: tuple[Release, ReleaseReport], tiny: tuple[Release, ReleaseReport]
) -> None:
    release, found = calibrated
    assert release.id != tiny[0].id
    assert release.output.uncalibrated == tiny[0].output
    assert release.output.temperature == pytest.approx(TEMPERATURE, rel=0.5)
    assert release.output.abstain_below == 0.75
    assert found.quality is not None
    measured = found.quality.calibration
    assert measured is not None
    assert (measured.cross_fitted, measured.temperature) == (True, release.output.temperature)
    assert measured.ece_after < measured.ece_before
    page = (release.read_note(report.MARKDOWN) or b"").decode()
    assert f"uncalibrated, {measured.ece_after:.4f} at temperature {measured.temperature:g} (cross-fitted" in page
    assert "abstains below 0.75: " in page
    assert page.count("┃") == len(measured.bins) + 1
    assert f"| {measured.curve[-1].confidence:.3f} | 25.00% |" in page


def test_variants_agree_as_without_a_temperature(
    calibrated: tuple[Release, ReleaseReport], texts: Texts, tiny: tuple[Release, ReleaseReport]
) -> None:
    """Only the largest difference of probabilities is another. CPUs without BF16 compute that variant in fp32, where
    the difference is zero with and without a temperature."""
    of = {name: found.variants for name, found in (("calibrated", calibrated[1]), ("plain", tiny[1]))}
    for mine, other in zip(of["calibrated"], of["plain"], strict=True):
        assert mine.parity is not None
        assert other.parity is not None
        assert mine.parity.agreement == other.parity.agreement
        assert (mine.parity.max_difference == other.parity.max_difference) == (other.parity.max_difference == 0)
    release = calibrated[0]
    again = gate.release_evaluator(release, texts.gate, tiny_builds.BOUNDS)
    plain = gate.release_evaluator(tiny[0], texts.gate, tiny_builds.BOUNDS)
    assert (again.reference == plain.reference).all()
    quality = again.quality()
    assert quality is not None
    assert quality.calibration is not None
    assert (quality.calibration.cross_fitted, quality.calibration.temperature) == (False, release.output.temperature)


def test_probabilities_that_change_with_the_batch_are_refused(
    calibrated: tuple[Release, ReleaseReport], texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = calibrated[0]
    assert all(variant.passed for variant in calibrated[1].variants)
    # No difference is as small as this.
    monkeypatch.setitem(gate.TAU, Precision.FP32, -1.0)
    evaluator = gate.release_evaluator(release, texts.gate, tiny_builds.BOUNDS)
    verdict = gate.evaluate_variant(evaluator, release.manifest.variants[0], 1, gate.release_opener(release))
    (failure,) = verdict.failures
    assert failure.startswith(f"is not stable: at temperature {release.output.temperature:g} probabilities alone")


@pytest.mark.parametrize(
    ("labelled", "message"),
    [(False, "needs 100 labelled texts or more"), (True, r"99.00% cannot be shown: .* on these 200 texts")],
)
def test_a_precision_that_cannot_be_shown_is_refused(
    calibrated: tuple[Release, ReleaseReport], texts: Texts, labelled: bool, message: str
) -> None:
    asked = texts.gate if labelled else replace(texts.gate, truth=None)
    evaluator = gate.release_evaluator(calibrated[0], asked, tiny_builds.BOUNDS)
    with pytest.raises(BadInput, match=message):
        evaluator.calibrated({DEFAULT_HEAD: Abstain(precision=0.99)})


def test_without_labels_no_temperature_is_fitted(tiny: tuple[Release, ReleaseReport]) -> None:
    assert tiny[0].output.temperature == 1
    assert "- no text is labelled: build fits no temperature" in (tiny[0].read_note(report.MARKDOWN) or b"").decode()
