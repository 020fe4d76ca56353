"""The gate: only a variant that agrees with the fp32 reference, and is fast enough, may be promoted."""

import contextlib
import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch

from shared_model import devices, settings
from shared_model.__main__ import main
from shared_model.commands import common
from shared_model.errors import BadInput, ReleaseError
from shared_model.evaluation import benchmark, corpora, gate, report
from shared_model.evaluation.corpora import HELD_OUT
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.evaluation.verdict import ReleaseReport, Tried, Verdict
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from shared_model.types import Device, Precision
from tests.shared_model import tiny_builds

pytestmark = pytest.mark.heavy

Judged = Callable[..., ReleaseReport]
INT8 = ("int8/model.xml", "int8/model.bin")


def judged(
    release: Release, bounds: GateSettings = tiny_builds.BOUNDS, source: str = corpora.GENERATED
) -> ReleaseReport:
    asked = replace(corpora.generated_texts(release.manifest.reads, 200), source=source)
    evaluator = gate.release_evaluator(release, asked, bounds)
    return gate.evaluate_release(release, evaluator, say=lambda line: None)


def int8_of(found: ReleaseReport) -> Verdict:
    (variant,) = [variant for variant in found.variants if variant.precision == "int8"]
    return variant


@pytest.fixture(params=["tiny", pytest.param("release", marks=pytest.mark.proof)])
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Release:
    """A tiny release, or the default one, somewhere else: a report belongs to a place, not to the bytes."""
    found = request.getfixturevalue(request.param)
    release: Release = found if request.param == "release" else found[0]
    shutil.copytree(release.place, tmp_path / release.manifest.name / release.id)
    return Store(tmp_path).open(release.id)


def test_a_release_passes_without_labelled_data(copied: Release) -> None:
    """As on a fresh machine, which has none."""
    # How fast it is here, beside the rest of a suite, is for `make bench-release` to say.
    tiny, default = tiny_builds.BOUNDS, GateSettings(gate_latency_ms=1000, gate_batch_ms=10_000)
    bounds = tiny if copied.manifest.name == "tiny" else default
    evaluator = gate.release_evaluator(copied, corpora.generated_texts(copied.manifest.reads), bounds)
    gate.evaluate_release(copied, evaluator, say=lambda line: None)
    found = json.loads(copied.read_note(report.JSON) or b"")
    assert [v["failures"] for v in found["variants"]] == [[]] * len(found["variants"])
    assert (found["passed"], found["evaluation"], found["release"]) == (True, "generated", copied.id)
    assert (found["output"], found["quantisation"]) == ("single_label", copied.manifest.quantisation)
    names = [f"{v['precision']}/{v['device']}" for v in found["variants"]]
    assert sorted(names + found["unproven"]) == ["bf16/cpu", "fp16/cuda", "fp32/cpu", "int8/cpu"]
    assert devices.detect() is Device.CUDA or found["unproven"] == ["fp16/cuda"]
    copied.verify()  # the report lies outside the id
    assert (copied.read_note(report.MARKDOWN) or b"").startswith(f"# {copied.id}: passed\n".encode())
    assert found["calibration_sha256"] == copied.manifest.calibration
    longest = copied.manifest.reads.max_tokens
    for variant in found["variants"]:
        assert variant["compiled"] in (variant["precision"], "fp32")
        timed = [(latency["threads"], latency["rows"], latency["tokens"]) for latency in variant["latency"]]
        shapes = [(1, 8), (1, 16), (1, 32), (1, 64), (1, 128), (1, 256), (64, 32)]
        widths = dict.fromkeys((devices.cores(), 1)) if variant["device"] == "cpu" else [1]
        assert timed == [(width, *shape) for width in widths for shape in shapes if shape[1] <= longest]
        assert sum(confusion["texts"] for confusion in variant["confusion"]) <= (1 - variant["agreement"]) * 1000 + 0.5
    sizes = {v["precision"]: v["size_bytes"] for v in found["variants"]}
    assert sizes["int8"] == sum(len(copied.read(path)) for path in INT8)
    # A tiny model's graph is longer than its weights.
    assert copied.manifest.name == "tiny" or sizes["int8"] < sizes["fp32"]


def test_a_variant_that_is_too_slow_here_is_marked_and_not_refused(
    tiny: tuple[Release, ReleaseReport], tmp_path: Path
) -> None:
    release = tiny_builds.resealed(tiny[0], tmp_path)
    found = judged(
        release, replace(tiny_builds.BOUNDS, gate_latency_ms=1e-3, gate_batch_ms=2e-3, gate_min_accuracy=0.9)
    )
    assert [variant.failures for variant in found.variants] == [()] * len(found.variants)
    slow = {variant.name: variant.slow_here for variant in found.variants}
    assert slow["fp32/cpu"] is None
    cores = devices.cores()
    for name, call, budget in (
        ("int8/cpu", "1×32", "0.001 ms (TANDEM_GATE_LATENCY_MS)"),
        ("bf16/cpu", "64×32", "0.002 ms (TANDEM_GATE_BATCH_MS)"),
    ):
        said = slow[name] or ""
        assert said.startswith("takes ")
        assert said.endswith(f" ms for {call} tokens on {cores} threads, its lane allows {budget}")
        assert f"- {name} slow here: {said}" in (release.read_note(report.MARKDOWN) or b"").decode()
    unmeasured = "needs 90.00% accuracy (TANDEM_GATE_MIN_ACCURACY), but no text is labelled: pass --eval"
    assert found.failures == (unmeasured,)


def test_a_refused_variant_shows_where_it_differs(tiny: tuple[Release, ReleaseReport], tmp_path: Path) -> None:
    """Here the INT8 graph answers with the bytes of the head turned by one label."""
    release = turned(tiny[0], tmp_path)
    variant = int8_of(judged(release))
    assert not variant.passed
    assert variant.parity is not None
    assert "names the reference's label for" in variant.failures[0]
    generated = corpora.generated_texts(release.manifest.reads, 200).shown
    assert len(variant.examples) == 5
    assert all(e.text in generated and e.reference != e.variant for e in variant.examples)
    page = (release.read_note(report.MARKDOWN) or b"").decode()
    assert f"- int8/cpu {variant.failures[0]}" in page
    assert "Next steps" in page


def test_texts_of_a_sample_are_somebodys_and_not_shown(tiny: tuple[Release, ReleaseReport], tmp_path: Path) -> None:
    release = turned(tiny[0], tmp_path)
    asked = corpora.generated_texts(release.manifest.reads, 100)
    secret = replace(asked, source=HELD_OUT, shown=[f"sample.jsonl:{number}" for number in range(100)])
    evaluator = gate.release_evaluator(release, secret, tiny_builds.BOUNDS)
    gate.evaluate_release(release, evaluator, say=lambda line: None)
    for note in (report.JSON, report.MARKDOWN):
        page = (release.read_note(note) or b"").decode()
        assert "sample.jsonl:" in page
        assert not [text for text in asked.shown if len(text) > 20 and text in page]


def turned(release: Release, root: Path) -> Release:
    """Its INT8 variant names the label next to the right one."""
    weight = safetensors.torch.load(release.read("weights.safetensors"))["model.classifier.weight"].numpy()
    graph = release.read("openvino/model.bin")
    assert weight.tobytes() in graph
    other = graph.replace(weight.tobytes(), np.roll(weight, 1, axis=0).tobytes())
    return tiny_builds.resealed(
        release, root, {"int8/model.xml": release.read("openvino/model.xml"), "int8/model.bin": other}
    )


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        ({"int8/model.xml": b"<net>", "int8/model.bin": b""}, "cannot run: "),
        ({"int8/model.bin": b"short"}, "cannot run: "),
    ],
    ids=["no graph", "no weights"],
)
def test_a_variant_that_cannot_run_is_a_verdict(
    tiny: tuple[Release, ReleaseReport], tmp_path: Path, files: dict[str, bytes], wrong: str
) -> None:
    release = tiny_builds.resealed(tiny[0], tmp_path, files)
    found = judged(release)
    (failure,) = int8_of(found).failures
    assert failure.startswith(wrong)
    assert "\n" not in failure
    assert [variant.passed for variant in found.variants] == [True, True, False]
    document = json.loads(release.read_note(report.JSON) or b"")["variants"][2]
    assert (document["compiled"], document["agreement"], document["passed"]) == (None, None, False)


def test_a_release_without_int8_is_refused_and_says_what_was_tried(
    tiny: tuple[Release, ReleaseReport], tmp_path: Path
) -> None:
    fp32, bf16, _, fp16 = tiny[0].manifest.variants
    release = tiny_builds.resealed(tiny[0], tmp_path, variants=(fp32, bf16, fp16))
    evaluator = gate.release_evaluator(release, corpora.generated_texts(release.manifest.reads, 50), tiny_builds.BOUNDS)
    tried = (Tried("the only one", None, ("cannot run: no such operator",)),)
    found = gate.evaluate_release(release, evaluator, say=lambda line: None, tried=tried)
    assert int8_of(found).failures == ("could not be made: cannot run: no such operator",)
    assert not found.passed
    assert (release.read_note(report.MARKDOWN) or b"").decode().count("no such operator") == 2


def test_a_variant_of_the_wrong_width_cannot_run(
    tiny: tuple[Release, ReleaseReport], regression: tuple[Release, ReleaseReport], tmp_path: Path
) -> None:
    release = tiny_builds.resealed(tiny[0], tmp_path, {path: regression[0].read(path) for path in INT8})
    (failure,) = int8_of(judged(release)).failures
    assert failure.startswith("cannot run: gives an array of (")
    assert ", 1) where (" in failure


def test_a_damaged_file_is_no_verdict(tiny: tuple[Release, ReleaseReport], tmp_path: Path) -> None:
    release = tiny_builds.resealed(tiny[0], tmp_path)
    (Path(release.place) / "int8/model.bin").write_bytes(b"x")
    with pytest.raises(ReleaseError, match=r"int8/model\.bin does not match its sha256"):
        judged(release)


def test_a_reference_that_cannot_run_is_one_line(tiny: tuple[Release, ReleaseReport], tmp_path: Path) -> None:
    release = tiny_builds.resealed(tiny[0], tmp_path, {"openvino/model.xml": b"<net>"})
    with pytest.raises(ReleaseError, match="fp32/cpu cannot run: ") as refused:
        judged(release)
    assert "\n" not in str(refused.value)


def test_a_reference_that_gives_no_numbers_is_refused(tiny: tuple[Release, ReleaseReport], tmp_path: Path) -> None:
    graph = tiny[0].read("openvino/model.bin")
    weight = safetensors.torch.load(tiny[0].read("weights.safetensors"))["model.classifier.weight"].numpy()
    broken = graph.replace(weight.tobytes(), np.full_like(weight, np.nan).tobytes())
    found = judged(tiny_builds.resealed(tiny[0], tmp_path, {"openvino/model.bin": broken}))
    assert [variant.passed for variant in found.variants] == [False] * 3
    assert found.variants[0].failures[0] == "gives scores that are no numbers for 200 texts"


def test_what_the_build_tried_is_kept_when_a_release_is_judged_again(
    tiny: tuple[Release, ReleaseReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tiny_builds.resealed(tiny[0], tmp_path)
    report.write(release, replace(tiny[1], release=release.id))
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TANDEM_RELEASES", str(tmp_path))
    monkeypatch.setenv("TANDEM_GATE_MIN_AGREEMENT", "0.5")
    main(["gate", "--release", release.id])
    assert report.tried_before(release) == tiny[1].tried != ()
    assert json.loads(release.read_note(report.JSON) or b"")["variants"][0]["texts"] == 1000


def test_labels_the_model_does_not_know_are_named(release: Release, tmp_path: Path) -> None:
    (tmp_path / "eval.csv").write_text("text,label\nis it raining,weather\n")
    with pytest.raises(BadInput, match="does not know the label 'weather'"):
        corpora.labelled_texts(tmp_path / "eval.csv", release.output, release.manifest.reads)


def surest(release: Release) -> list[tuple[str, str]]:
    """Two texts and their labels: of two labels the text of which fp32 says it most surely."""
    asked = [str(text) for text in corpora.generated_texts(release.manifest.reads, 200).texts]
    with contextlib.closing(release.engine(Precision.FP32, Device.CPU, 1)) as engine:
        scores = benchmark.score_all(engine, release.output, release.encoder().encode_many(asked))
    found = {release.labels[scores[row].argmax()]: asked[row] for row in scores.max(axis=1).argsort()}
    return [(text, label) for label, text in sorted(found.items())][:2]


def test_a_model_is_held_against_chance_a_floor_and_the_active_release(
    tiny: tuple[Release, ReleaseReport],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The active release is right on every text; another, whose head is turned by one label, on none."""
    active, right = tiny_builds.resealed(tiny[0], tmp_path), surest(tiny[0])
    graph = tiny[0].read("openvino/model.bin")
    weight = safetensors.torch.load(tiny[0].read("weights.safetensors"))["model.classifier.weight"].numpy()
    other = tiny_builds.resealed(
        tiny[0],
        tmp_path,
        {"openvino/model.bin": graph.replace(weight.tobytes(), np.roll(weight, 1, axis=0).tobytes())},
    )
    pointer.promote(Store(tmp_path), None, active.id)
    for name, value in (
        ("MIN_AGREEMENT", "0.01"),
        ("MAX_ACCURACY_DROP", "100"),
        ("LATENCY_MS", "1e4"),
        ("BATCH_MS", "1e4"),
    ):
        monkeypatch.setenv(f"TANDEM_GATE_{name}", value)
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TANDEM_RELEASES", str(tmp_path))
    with open(tmp_path / "eval.csv", "w", newline="") as file:
        csv.writer(file).writerows([("utterance", "intent"), *right * 20])
    evaluated = ["gate", "--eval", str(tmp_path / "eval.csv")]

    assert main([*evaluated, active.id, "--min-accuracy", "1"]) == 0
    assert "text from column 'utterance', label from column 'intent'" in capsys.readouterr().out
    page = (active.read_note(report.MARKDOWN) or b"").decode()
    assert "- accuracy of fp32 on 40 labelled texts: 100.00%; chance: 50.00% (p 0.000)\n" in page

    assert main([*evaluated, other.id, "--min-accuracy", "0.9"]) == 1
    found = json.loads(other.read_note(report.JSON) or b"")
    assert found["quality"]["active"] == active.id
    assert (found["quality"]["accuracy"], found["quality"]["active_accuracy"]) == (0, 1)
    floor, chance, dropped = found["failures"]
    assert floor.endswith("needs 90.00% (TANDEM_GATE_MIN_ACCURACY)")
    assert "not clearly more than chance, 50.00%" in chance
    assert f"100.00 points less than the active release {active.id}" in dropped
    page = (other.read_note(report.MARKDOWN) or b"").decode()
    assert f"- {floor}\n- {chance}\n- {dropped}\n" in page
    assert f"- active release {active.id} on these texts: 100.00% (McNemar" in page
    capsys.readouterr()
    assert main(["promote", other.id]) == 1
    assert chance in capsys.readouterr().out


def test_a_model_that_loses_no_more_than_chance_explains_is_promoted(
    tiny: tuple[Release, ReleaseReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1,076 labelled texts INT8 loses 7 and gains 3; it names fp32's label on 98.88 % of all, on 100 % of the clear
    ones."""
    release = tiny_builds.resealed(tiny[0], tmp_path)
    width = release.output.width
    reference = np.full((1076, width), 0.2 / (width - 1), np.float32)
    reference[:, 0] = 0.8
    reference[:12, :2] = 0.45, 0.40
    int8, truth = reference.copy(), np.zeros(1076, int)
    int8[:12, :2] = 0.40, 0.45
    truth[7:10] = 1
    truth[10:12] = 2
    asked = replace(corpora.generated_texts(release.manifest.reads, 1076), source=corpora.LABELLED, truth=truth)
    bounds = GateSettings(gate_latency_ms=10_000, gate_batch_ms=10_000, gate_beat_chance=False)
    evaluator = gate.Evaluator(
        release.output,
        release.manifest.reads,
        asked,
        release.encoder().encode_many(asked.texts),
        reference,
        bounds,
    )
    scored = {Precision.INT8: int8, Precision.BF16: reference}
    found = gate.evaluate_release(release, evaluator, say=lambda line: None, scored=scored)
    measured = int8_of(found).parity
    assert measured is not None
    assert (f"{measured.agreement:.2%}", measured.clear_agreement, found.passed) == ("98.88%", 1, True)
    assert "int8/cpu: it or fp32 alone is right on 0.93%" in (release.read_note(report.MARKDOWN) or b"").decode()
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TANDEM_RELEASES", str(tmp_path))
    assert main(["keys", "--operator"]) == 0
    common.sign_verdict(settings.load(StateSettings), release)
    assert main(["promote", release.id]) == 0
    assert pointer.read(Store(tmp_path), None).active == release.id


def test_where_few_labelled_texts_are_clear_others_are_added_for_agreement(
    tiny: tuple[Release, ReleaseReport], tmp_path: Path
) -> None:
    """40 labelled texts, 50 that were held out, and as many generated ones as it takes to have 300 clear ones."""
    release = tiny_builds.resealed(tiny[0], tmp_path)
    generated = corpora.generated_texts(release.manifest.reads)
    labelled = replace(generated.first(40), source=corpora.LABELLED, truth=np.zeros(40, int))
    held_out = replace(generated.first(50), source=HELD_OUT, shown=[f"sample.jsonl:{number}" for number in range(50)])
    asked = corpora.in_order(labelled, held_out, generated)
    evaluator = gate.release_evaluator(release, asked, replace(tiny_builds.BOUNDS, gate_beat_chance=False))
    assert (evaluator.added[0].source, len(evaluator.added[0].texts)) == (HELD_OUT, 50)
    clear = evaluator.parity(evaluator.reference)
    assert (clear.texts, clear.clear_texts) == (40, 300)
    assert clear.labelled_clear <= 40
    assert not clear.judges_accuracy
    assert len(evaluator.own(evaluator.reference)) == len(evaluator.shown)
    assert len(evaluator.encodings) == len(evaluator.reference)
    found = gate.evaluate_release(release, evaluator, say=lambda line: None)
    assert found.quality is not None
    assert found.quality.texts == 40
    assert [added.source for added in found.added] == [HELD_OUT, corpora.GENERATED]
    page = (release.read_note(report.MARKDOWN) or b"").decode()
    assert "accuracy of variants is not judged: 300 labelled texts with a clear label are needed, and " in page
    assert "- agreement also on 50 held-out texts" in page


def test_enough_clear_texts_need_no_others(tiny: tuple[Release, ReleaseReport]) -> None:
    generated = corpora.generated_texts(tiny[0].manifest.reads)
    asked = corpora.in_order(generated, generated)
    assert gate.release_evaluator(tiny[0], asked, tiny_builds.BOUNDS).added == ()


def test_a_broken_variant_is_refused_and_cannot_be_promoted(
    tiny: tuple[Release, ReleaseReport],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Sealed as if all were well."""
    broken, right = turned(tiny[0], tmp_path), surest(tiny[0])
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TANDEM_RELEASES", str(tmp_path))
    monkeypatch.setenv("TANDEM_GATE_LATENCY_MS", "10000")
    monkeypatch.setenv("TANDEM_GATE_BATCH_MS", "10000")
    with open(tmp_path / "eval.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *right * 150])

    assert main(["promote", broken.id]) != 0
    assert main(["gate", "--release", broken.id, "--eval", str(tmp_path / "eval.csv")]) == 1
    found = json.loads(broken.read_note(report.JSON) or b"")
    assert {v["precision"]: v["passed"] for v in found["variants"] if v["device"] == "cpu"} == {
        "fp32": True,
        "bf16": True,
        "int8": False,
    }
    (wrong,) = [v for v in found["variants"] if v["precision"] == "int8"]
    assert (wrong["accuracy_drop_points"], wrong["mcnemar_p"]) == (100.0, 2 * 0.5**300)
    loss, clear, floor = wrong["failures"]
    assert loss == "loses 100.00 points of accuracy (McNemar p 0.0000), may lose 0.3 (TANDEM_GATE_MAX_ACCURACY_DROP)"
    assert "for 0.00% of 300 texts with a clear label, of all such texts for 0.89% at most" in clear
    assert floor.endswith("for 0.00% of 300 labelled texts, needs 97.00% (TANDEM_GATE_MIN_LABELLED_AGREEMENT)")
    assert [confusion["texts"] for confusion in wrong["confusion"]] == [150, 150]
    assert {example["text"] for example in wrong["examples"]} <= {text for text, _ in right}
    assert main(["promote", broken.id]) != 0
    with pytest.raises(ReleaseError, match="no release is active"):
        pointer.read(Store(tmp_path), None)
