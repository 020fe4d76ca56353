"""The gate: only a variant that agrees with the fp32 reference may be promoted."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from shared_model import devices
from shared_model.__main__ import HEADS, main
from shared_model.encoding import Encoding
from shared_model.engine import Engine
from shared_model.errors import ReleaseError
from shared_model.releases import build, parity, pointer, store
from shared_model.releases.store import Release
from shared_model.training import Examples, load_head
from shared_model.types import Device, Precision

Scores = NDArray[np.float32]


@pytest.fixture(scope="module")
def reference(engines: dict[Precision, Engine], encodings: list[Encoding]) -> Scores:
    return parity.score_all(engines[Precision.FP32], encodings)


@pytest.fixture(scope="module")
def judged(engines: dict[Precision, Engine]) -> Engine:
    return engines[Precision.INT8]


def judge(judged: Engine, scores: Scores, reference: Scores, labelled: bool = False) -> parity.Parity:
    truth = reference.argmax(1) if labelled else None
    return parity.judge(judged, Precision.INT8, scores, reference, truth)


@pytest.mark.parametrize("labelled", [True, False])
def test_the_reference_agrees_with_itself(judged: Engine, reference: Scores, labelled: bool) -> None:
    verdict = judge(judged, reference, reference, labelled)
    assert verdict.passed
    assert (verdict.agreement, verdict.clear_agreement, verdict.max_probability_difference) == (1, 1, 0)


@pytest.mark.parametrize("labelled", [True, False])
def test_other_labels_are_refused(judged: Engine, reference: Scores, labelled: bool) -> None:
    verdict = judge(judged, np.roll(reference, 1, axis=1), reference, labelled)
    assert not verdict.passed
    assert any("names the reference's label for 0.00%" in failure for failure in verdict.failures)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_one_value_that_is_not_finite_is_refused(judged: Engine, reference: Scores, wrong: float) -> None:
    scores = reference.copy()
    scores[3, 5] = wrong
    verdict = judge(judged, scores, reference)
    assert "some probabilities are not finite" in verdict.failures
    assert "NaN" not in json.dumps(verdict.to_document())


@pytest.mark.parametrize(("wrong_texts", "passed"), [(0, True), (1, True), (2, False)])
def test_one_text_in_a_hundred_may_differ(judged: Engine, wrong_texts: int, passed: bool) -> None:
    reference = np.tile(np.array([0.7, 0.2, 0.1], np.float32), (100, 1))
    scores = reference.copy()
    scores[:wrong_texts] = [0.2, 0.7, 0.1]
    assert judge(judged, scores, reference).passed == passed


def test_without_labels_only_clear_texts_are_asked_for(judged: Engine) -> None:
    unclear = np.tile(np.array([0.34, 0.33, 0.33], np.float32), (50, 1))
    clear = np.tile(np.array([0.7, 0.2, 0.1], np.float32), (50, 1))
    reference, scores = np.vstack([unclear, clear]), np.vstack([unclear[:, ::-1], clear])
    assert judge(judged, scores, reference).passed
    assert not judge(judged, scores, reference, labelled=True).passed


def test_texts_without_a_clear_label_prove_nothing(judged: Engine) -> None:
    unclear = np.tile(np.array([0.34, 0.33, 0.33], np.float32), (50, 1))
    assert not judge(judged, unclear, unclear).passed


def test_lost_accuracy_is_refused_even_where_agreement_is_high(judged: Engine) -> None:
    reference = np.tile(np.array([0.7, 0.3], np.float32), (1000, 1))
    scores = reference.copy()
    scores[:4] = [0.3, 0.7]
    verdict = judge(judged, scores, reference, labelled=True)
    assert verdict.failures == ("loses 0.40 points of accuracy, may lose 0.3",)


@pytest.fixture
def copied(release: Release, tmp_path: Path) -> Release:
    """The default release somewhere else: a report belongs to a place, not to the bytes."""
    shutil.copytree(release.folder, tmp_path / release.folder.parent.name / release.id)
    return store.open_release(tmp_path, release.id)


def test_the_default_release_passes_without_labelled_data(copied: Release) -> None:
    """As on a fresh machine, which has none."""
    verdicts = build.gate(copied, say=lambda line: None)
    assert [v.failures for v in verdicts] == [()] * len(verdicts)
    report = json.loads((copied.folder / store.REPORT).read_text())
    assert (report["passed"], report["evaluation"], report["release"]) == (True, "generated", copied.id)
    judged = [f"{v.precision}/{v.device}" for v in verdicts]
    assert sorted(judged + report["unproven"]) == ["bf16/cpu", "fp16/cuda", "fp32/cpu", "int8/cpu"]
    assert devices.detect() is Device.CUDA or report["unproven"] == ["fp16/cuda"]
    copied.verify()  # the report lies outside the id
    assert (copied.folder / "report.md").read_text().startswith(f"# {copied.id}: passed\n")
    assert report["calibration_sha256"] == copied.manifest.calibration
    for variant in report["variants"]:
        shapes = [(latency["rows"], latency["tokens"]) for latency in variant["latency"]]
        assert shapes == [(1, 8), (1, 16), (1, 32), (1, 64), (1, 128), (1, 256), (64, 32)]
        assert variant["threads"] == (devices.cores() if variant["device"] == "cpu" else 1)
        assert sum(confusion["texts"] for confusion in variant["confusion"]) <= (1 - variant["agreement"]) * 1000 + 0.5
    sizes = {v["precision"]: v["size_bytes"] for v in report["variants"]}
    files = ("int8/model.xml", "int8/model.bin")
    assert sizes["int8"] == sum((copied.folder / path).stat().st_size for path in files) < sizes["fp32"]


def test_labels_the_model_does_not_know_are_named(copied: Release) -> None:
    with pytest.raises(ReleaseError, match="labels the model does not: weather"):
        build.gate(copied, say=lambda line: None, evaluation=Examples(["is it raining"], ["weather"], "0" * 64))


@pytest.fixture
def broken(release: Release, tmp_path: Path) -> Release:
    """A release whose INT8 variant names the label next to the right one, sealed as if all were well."""
    files = {path: release.read(path) for path in release.manifest.files}
    weight = load_head(HEADS / "banking77").weight
    assert weight.tobytes() in files["openvino/model.bin"]
    turned = files["openvino/model.bin"].replace(weight.tobytes(), np.roll(weight, 1, axis=0).tobytes())
    files |= {"int8/model.xml": files["openvino/model.xml"], "int8/model.bin": turned}
    facts = release.manifest
    return store.seal(
        tmp_path,
        files,
        facts.variants,
        name="broken",
        parent=facts.parent,
        labels=facts.labels,
        max_tokens=facts.max_tokens,
        calibration=facts.calibration,
    )


def test_a_broken_variant_is_refused_and_cannot_be_promoted(
    broken: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TANDEM_RELEASES", str(tmp_path))
    evaluation = tmp_path / "eval.csv"
    evaluation.write_text("text,label\n" + "I lost my card,lost_or_stolen_card\nwhat is the rate,exchange_rate\n" * 20)

    assert main(["promote", broken.id]) == 1
    assert "has not passed its gate" in capsys.readouterr().out
    assert main(["gate", "--release", broken.id, "--eval", str(evaluation)]) == 1
    report = json.loads((broken.folder / store.REPORT).read_text())
    assert {v["precision"]: v["passed"] for v in report["variants"] if v["device"] == "cpu"} == {
        "fp32": True,
        "bf16": True,
        "int8": False,
    }
    (turned,) = [v for v in report["variants"] if v["precision"] == "int8"]
    assert (turned["accuracy_drop_points"], turned["mcnemar_p"]) == (100.0, 2 * 0.5**40)
    assert [confusion["texts"] for confusion in turned["confusion"]] == [20, 20]
    assert main(["promote", broken.id]) == 1
    with pytest.raises(ReleaseError, match="no release is active"):
        pointer.get_active(tmp_path, None)
