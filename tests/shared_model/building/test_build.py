"""Building a release: any checkpoint → files → the first INT8 recipe that passes → sealed once → judged."""

import contextlib
import csv
import itertools
import json
import multiprocessing.process
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino
import pytest

from shared_model import demo_messages, devices, settings
from shared_model.__main__ import main
from shared_model.building import build, checkpoint, convert, quantise, recipes, training_texts
from shared_model.building.checkpoint import Checkpoint
from shared_model.building.recipes import RECIPES, Recipe
from shared_model.encoding import Encoder, InputSpec, collate
from shared_model.engine import open_engine
from shared_model.errors import ReleaseError
from shared_model.evaluation import corpora, gate, judged, report
from shared_model.evaluation.gate import Evaluator
from shared_model.evaluation.verdict import ReleaseReport
from shared_model.output import OutputKind
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from shared_model.types import Device, Precision
from tests.shared_model import small_release, tiny_builds, tiny_models

pytestmark = pytest.mark.heavy

Built = tuple[Release, ReleaseReport]
#: The INT8 graph, and of each recipe that was tried its name, agreement and whether it passed.
Quantised = tuple[quantise.Int8 | None, list[tuple[str, float | None, bool]]]


def make(folder: Path, kind: str) -> Checkpoint:
    """A tiny model of one kind of output, with random weights."""
    if kind == "pairs":
        return tiny_builds.surer(checkpoint.load(tiny_models.make(folder, "bert"), pairs=True))
    if kind == "embedding":
        return checkpoint.load(tiny_models.make(folder, "bert", encoder=True))
    folder = tiny_models.make(folder, "distilbert", problem_type="multi_label_classification")
    return tiny_builds.surer(checkpoint.load(folder))


#: The suite builds one as a further head: `test_several_heads.py`.
MULTI_LABEL = pytest.param("multi_label", marks=pytest.mark.proof)


@pytest.fixture(scope="module", params=["single_label", MULTI_LABEL, "regression", "embedding", "pairs"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Built]:
    if request.param in ("single_label", "regression"):
        return request.param, request.getfixturevalue("tiny" if request.param == "single_label" else "regression")
    source = make(tmp_path_factory.mktemp("model"), request.param)
    return request.param, tiny_builds.built(tmp_path_factory.mktemp("releases"), source)


def test_every_kind_of_output_becomes_a_release(built: tuple[str, Built]) -> None:
    kind, (release, found) = built
    assert found.passed, [variant.failures for variant in found.variants]
    assert release.output.kind == found.output == ("single_label" if kind == "pairs" else kind)
    assert release.manifest.reads.pairs == release.manifest.reads.types == (kind == "pairs")
    assert [str(v) for v in release.manifest.variants] == ["fp32/cpu", "bf16/cpu", "int8/cpu", "fp16/cuda"]
    assert found.release == release.id
    assert all(variant.parity and variant.parity.accuracy is None for variant in found.variants)
    page = (release.read_note(report.MARKDOWN) or b"").decode()
    assert f"- output: {release.output.kind.value.replace('_', ' ')}\n" in page
    release.verify()


def test_what_was_sealed_answers_as_it_was_judged(built: tuple[str, Built]) -> None:
    """The INT8 file of the release is the graph of the recipe that passed, and computes the model's outputs."""
    _, (release, found) = built
    asked = corpora.generated_texts(release.manifest.reads, 200)
    evaluator = gate.release_evaluator(release, asked, tiny_builds.BOUNDS)
    with_int8 = release.engine(Precision.INT8, Device.CPU, devices.cores())
    scores = evaluator.score(with_int8, "again")
    with_int8.close()
    assert evaluator.own(scores).shape == (200, release.output.width)
    int8 = found.variants[2].parity
    assert int8 is not None
    assert evaluator.parity(scores).agreement == int8.agreement
    assert 0 < int8.max_difference == pytest.approx(float(np.abs(scores - evaluator.reference).max()))
    if release.output.kind is OutputKind.EMBEDDING:
        assert np.linalg.norm(scores, axis=1) == pytest.approx(1, abs=0.02)


def test_the_manifest_says_what_int8_was_made_with(tiny: Built, tiny_checkpoint: Checkpoint) -> None:
    release, found = tiny
    assert found.quantisation == release.manifest.quantisation == found.tried[-1].recipe == in_full(RECIPES[0].name)
    assert found.tried[-1].failures == ()
    calibration = tiny_builds.few_texts(tiny_checkpoint).calibration[: RECIPES[0].texts]
    assert release.manifest.calibration == found.calibration_sha256 == corpora.digest(calibration)
    assert release.manifest.parent == tiny_checkpoint.parent


def test_bulk_work_reads_weights_of_half_the_bytes(tiny: Built) -> None:
    """Also on a CPU without BF16, which computes in fp32 what they are."""
    release, found = tiny
    read = {it.precision: it.files for it in release.manifest.variants}
    half = {name: release.read(path) for name, path in read[Precision.BF16].items()}
    sizes = [len(release.read(read[it]["model.bin"])) for it in (Precision.BF16, Precision.FP32)]
    assert sizes[0] < 0.55 * sizes[1]
    evaluator = gate.release_evaluator(release, corpora.generated_texts(release.manifest.reads, 50), tiny_builds.BOUNDS)
    with contextlib.closing(open_engine(Precision.FP32, Device.CPU, half, devices.cores())) as engine:
        scores = evaluator.score(engine, "in fp32")
    assert 0 < float(np.abs(scores - evaluator.reference).max()) < 0.02
    assert found.variants[1].passed


def test_a_release_is_sealed_once(tiny: Built) -> None:
    release, _ = tiny
    assert Store(release.files.root).ids() == [release.id]


def test_latency_is_known_for_one_thread_and_for_all_cores(tiny: Built) -> None:
    for variant in tiny[1].variants:
        threads = list(dict.fromkeys(latency.threads for latency in variant.latency))
        assert threads == list(dict.fromkeys((devices.cores(), 1)))


@pytest.fixture(scope="module")
def workbench(regression: Built) -> tuple[openvino.Model, Evaluator, Encoder]:
    """The fp32 graph of a release and a judge of its variants."""
    release, _ = regression
    model = openvino.Core().read_model(release.read("openvino/model.xml"), release.read("openvino/model.bin"))
    for port, name in zip(model.inputs, ("ids", "mask"), strict=False):
        port.get_tensor().set_names({name})
    asked = corpora.generated_texts(release.manifest.reads, 200)
    return model, gate.release_evaluator(release, asked, tiny_builds.BOUNDS), release.encoder()


def in_full(recipe: str) -> str:
    """The name of a recipe that spares no layer, with the share of layers in INT8."""
    return f"100% of linear layers in INT8, {recipe}"


def try_recipes(
    workbench: tuple[openvino.Model, Evaluator, Encoder],
    recipes: list[Recipe],
    least: float,
    said: list[str] | None = None,
) -> Quantised:
    model, evaluator, encoder = workbench
    evaluator = replace(evaluator, bounds=replace(evaluator.bounds, gate_min_agreement=least))
    calibration = encoder.encode_many(list(itertools.islice(demo_messages.texts(401), 40)))
    said = [] if said is None else said
    taken, tried = quantise.quantise(model, calibration, calibration[:10], evaluator, recipes, said.append)
    return taken, [(one.recipe, one.agreement, not one.failures) for one in tried]


ONE_TEXT, FORTY = Recipe(1), Recipe(40)


@pytest.fixture(scope="module")
def exhausted(
    workbench: tuple[openvino.Model, Evaluator, Encoder],
) -> Quantised:
    """Every recipe fails: two read all forty texts, one reads a single text."""
    return try_recipes(workbench, [FORTY, Recipe(400), ONE_TEXT], least=1.0)


def test_the_first_recipe_that_passes_is_taken(
    workbench: tuple[openvino.Model, Evaluator, Encoder],
    exhausted: Quantised,
) -> None:
    """Calibrated on one text, INT8 knows too little of the ranges; forty are enough for a bound in between."""
    (_, strong, _), (_, weak, _) = exhausted[1]
    assert weak is not None
    assert strong is not None
    assert weak < strong < 1
    said: list[str] = []
    taken, tried = try_recipes(workbench, [ONE_TEXT, FORTY, Recipe(40, spared=0.5)], (weak + strong) / 2, said)
    assert taken is not None
    assert taken.recipe == in_full(FORTY.name)
    assert tried == [(in_full(ONE_TEXT.name), weak, False), (in_full(FORTY.name), strong, True)]
    assert said[0] == f"quantising to INT8: {ONE_TEXT.name}"
    assert said[1].startswith("  it is within 0.1 standard deviations of the reference for ")
    assert said[2:] == [f"quantising to INT8: {FORTY.name}"]


def test_if_none_passes_the_nearest_is_kept(
    exhausted: Quantised,
) -> None:
    taken, tried = exhausted
    assert taken is not None
    assert taken.recipe == in_full(FORTY.name)
    assert not taken.compared.passed
    assert [passed for _, _, passed in tried] == [False, False]


def test_more_texts_than_there_are_need_no_second_try(
    exhausted: Quantised,
) -> None:
    assert [recipe for recipe, _, _ in exhausted[1]] == [in_full(FORTY.name), in_full(ONE_TEXT.name)]


def test_a_recipe_that_fails_is_said_and_the_next_is_tried(
    workbench: tuple[openvino.Model, Evaluator, Encoder],
) -> None:
    nothing = Recipe(0)
    said: list[str] = []
    taken, tried = try_recipes(workbench, [nothing, FORTY], least=0.1, said=said)
    assert said[1].startswith("  it cannot run: ")
    assert taken is not None
    assert taken.recipe == in_full(FORTY.name)
    assert tried[0] == (nothing.name, None, False)
    assert try_recipes(workbench, [nothing], least=0.1)[0] is None


def test_a_conversion_sends_no_telemetry(tiny_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO's telemetry sends each of its messages from a fork."""
    started: list[object] = []

    def start(process: object) -> None:
        started.append(process)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start)
    convert.to_openvino(tiny_checkpoint)
    assert started == []


def test_a_model_that_openvino_cannot_convert_ends_the_build(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    files = {**tiny_checkpoint.files, "weights.safetensors": b"not weights"}
    with pytest.raises(ReleaseError, match=r"^fp32/cpu cannot be converted: .+$"):
        tiny_builds.built(tmp_path, replace(tiny_checkpoint, files=files))
    assert Store(tmp_path).ids() == []


@pytest.mark.parametrize(
    ("times", "wrong"),
    [
        (float("nan"), "gives scores that are no numbers for 200 texts"),
        (0.0, "it is never sure of a label (it looks untrained); pass --eval"),
    ],
)
def test_a_model_that_says_nothing_ends_the_build(
    tiny_checkpoint: Checkpoint, tmp_path: Path, times: float, wrong: str
) -> None:
    with pytest.raises(
        ReleaseError, match=r"^fp32/cpu cannot be a reference: on 200 generated texts it .*$"
    ) as refused:
        tiny_builds.built(tmp_path, tiny_builds.surer(tiny_checkpoint, times))
    assert wrong in str(refused.value)
    assert Store(tmp_path).ids() == []


def test_a_bad_name_is_refused_before_any_work(tiny_checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"release name '\.\./up'"):
        build.build(
            Store(tmp_path),
            tiny_checkpoint,
            "../up",
            tiny_builds.few_texts(tiny_checkpoint),
            tiny_builds.BOUNDS,
            say=pytest.fail,
        )


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TANDEM_RELEASES", str(tmp_path / "releases"))
    monkeypatch.setenv("TANDEM_GATE_MIN_AGREEMENT", str(tiny_builds.BOUNDS.gate_min_agreement))
    monkeypatch.setenv("TANDEM_GATE_MAX_ACCURACY_DROP", "100")
    monkeypatch.setenv("TANDEM_GATE_LATENCY_MS", "10000")
    monkeypatch.setenv("TANDEM_GATE_BATCH_MS", "10000")
    return Store(tmp_path / "releases")


def sample_of(path: Path, count: int) -> Path:
    messages = itertools.islice(demo_messages.texts(33), count)
    path.write_text("".join(json.dumps({"text": message}) + "\n" for message in messages))
    return path


def test_the_command_builds_any_model_on_a_sample_and_promotes_the_first(
    own_state: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_models.make(tmp_path / "model", "bert", labels=["stars"], problem_type="regression")
    sample = sample_of(tmp_path / "sample.jsonl", 600)
    command = ["build", "--model", str(folder), "--name", "stars", "--calibrate", str(sample), "--max-tokens", "33"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    release = own_state.open(pointer.read(own_state, None).active)
    assert release.manifest.name == "stars"
    assert release.manifest.reads == InputSpec(32)
    found = json.loads(release.read_note(report.JSON) or b"")
    assert found["evaluation"] == "held-out"
    chosen = corpora.choose(release.output, release.manifest.reads, sample)
    generated = corpora.generated_texts(release.manifest.reads).texts
    assert found["variants"][0]["texts"] == len(chosen.gate.texts) == 108
    # Of the 600 lines some are equal; the others of 300 texts on which fp32 is sure are generated.
    assert found["added"] == [{"source": "generated", "texts": 192, "sha256": corpora.digest(generated[:192])}]
    assert found["calibration"] == f"{len(chosen.calibration)} texts of sample.jsonl"
    assert found["calibration_sha256"] == corpora.digest(chosen.calibration)
    assert found["evaluation_sha256"] == corpora.digest(chosen.gate.texts)
    for expected in ("converting", "quantising to INT8: ", "gate: int8/cpu", "int8/cpu: agreement ", "INT8 made by: "):
        assert expected in printed
    assert re.findall("step (.) of 4", printed) == ["1", "2", "3", "4"]
    assert "generated messages" not in printed
    assert f"release {release.id} is active" in printed


def test_the_command_measures_accuracy_on_labelled_texts(
    own_state: Store, tiny_checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_models.make(tmp_path / "model", "bert")
    messages = list(itertools.islice(demo_messages.texts(34), 60))
    with open(tmp_path / "eval.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((message, "yes") for message in messages)])
    # A random model is right by chance, and often unsure.
    assert main(["build", "--model", str(folder), "--name", "any", "--eval", str(tmp_path / "eval.csv")]) == 0
    assert ", accuracy " in capsys.readouterr().out
    release = own_state.open(own_state.ids()[0])
    found = json.loads(release.read_note(report.JSON) or b"")
    assert (found["evaluation"], found["variants"][0]["texts"]) == ("labelled", 60)
    encoder = release.encoder()
    engine = release.engine(Precision.FP32, Device.CPU, 1)
    right = [int(engine.score(collate([encoder.encode(message)]))[0].argmax()) == 1 for message in messages]
    assert found["variants"][0]["accuracy"] == pytest.approx(np.mean(right))


def test_a_head_is_calibrated_on_its_training_texts_which_no_other_file_holds(
    own_state: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Half of the evaluation is training texts, written differently."""
    caplog.set_level("DEBUG")
    encoder = tiny_models.make(tmp_path / "encoder", "bert", encoder=True)
    topics = {"rate": "exchange rate", "lost": "stolen card", "pin": "forgotten pin"}
    private = {
        f"Private {number} zq{number:04x} {about}": label for label, about in topics.items() for number in range(300)
    }
    public = {f"public {number} {about}": label for label, about in topics.items() for number in range(30)}
    write_examples(tmp_path / "train.csv", private)
    shared = {text.upper(): label for text, label in list(private.items())[::10]}
    write_examples(tmp_path / "eval.csv", public | shared)
    out, data = tmp_path / "head", tmp_path / "train.csv"
    assert main(["train-head", "--data", str(data), "--encoder", str(encoder), "--out", str(out)]) == 0
    command = ["build", "--name", "own", "--head", str(out), "--encoder", str(encoder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TANDEM_GATE_LATENCY_MS", "1e-6")
        patch.setenv("TANDEM_GATE_MIN_AGREEMENT", "1")
        # On some CPUs all variants agree: this refuses the release on any.
        patch.setenv("TANDEM_GATE_MIN_ACCURACY", "1")
        # The others read no other texts.
        patch.setattr(recipes, "RECIPES", RECIPES[:1])
        assert main([*command, "--eval", str(tmp_path / "eval.csv")]) == 1
    release = own_state.open(own_state.ids()[0])
    # 810 of 900 distinct texts are not in the evaluation, and three fifths of them are for calibration.
    found = json.loads(release.read_note(report.JSON) or b"")
    on = f"texts of {training_texts.FILE}; 90 others are in the evaluation and left out"
    assert found["calibration"] in (f"400 {on}", f"486 {on}")
    chosen = corpora.choose(
        release.output, release.manifest.reads, out / training_texts.FILE, tmp_path / "eval.csv", least=1
    )
    used = int(found["calibration"].split()[0])
    assert release.manifest.calibration == corpora.digest(chosen.calibration[:used])
    assert {str(text).upper() for text in chosen.calibration}.isdisjoint(shared)
    assert set(chosen.calibration) < set(private)

    printed = capsys.readouterr()
    written = [path for path in Path(own_state.files.root).rglob("*") if path.is_file()]
    assert len(written) > 8
    for place, contents in [(path, path.read_bytes()) for path in written] + [
        (Path("output"), (printed.out + printed.err + caplog.text).encode())
    ]:
        assert not [text for text in private if text.encode() in contents], place


def write_examples(path: Path, examples: dict[str, str]) -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *examples.items()])


def make_instead(patch: pytest.MonkeyPatch, release: Release) -> None:
    """The same bytes each time: a tiny model of random weights is not quantised twice alike."""
    evaluator = gate.release_evaluator(release, corpora.generated_texts(release.manifest.reads, 20), tiny_builds.BOUNDS)
    patch.setattr(build, "make", lambda *_: build.Built(release, evaluator, {}, ()))


def test_a_build_takes_no_traffic_from_an_active_release_unless_asked_to(
    own_state: Store,
    tiny: Built,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    active = small_release.passed(own_state, "active")
    pointer.promote(own_state, None, active.id)
    built = tiny_builds.resealed(tiny[0], tmp_path / "releases")
    make_instead(monkeypatch, built)
    command = ["build", "--model", str(tiny_models.make(tmp_path / "model", "bert")), "--name", "tiny"]
    assert main(command) == 0
    assert f"release {built.id} passed; {active.id} stays active until you" in capsys.readouterr().out
    verdict = judged.read_signed(Store.from_settings(settings.load(StateSettings)).open(built.id))
    assert verdict
    assert verdict.passed
    assert pointer.read(own_state, None).active == active.id
    assert main([*command, "--promote"]) == 0
    # Of another name: a model beside the default one.
    assert pointer.read(own_state, None, "tiny").active == built.id
    assert pointer.read(own_state, None).active == active.id


def test_a_build_of_the_active_release_leaves_its_report(
    own_state: Store,
    tiny: Built,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    active = tiny_builds.resealed(tiny[0], tmp_path / "releases")
    small_release.judge(active)
    pointer.promote(own_state, None, active.id)
    before = active.read_note(report.JSON)
    make_instead(monkeypatch, active)
    folder = tiny_models.make(tmp_path / "model", "bert")
    capsys.readouterr()
    assert main(["build", "--model", str(folder), "--name", "tiny", "--promote"]) == 0
    says = f"release {active.id} is built already and active; its report stays (`gate` judges it anew)\n"
    assert capsys.readouterr().out.endswith(f"\n{says}")
    assert active.read_note(report.JSON) == before
    assert pointer.read(own_state, None).version == 1


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--model", "there"], "--name: is needed with --model"),
        (["--pairs"], "--pairs: goes with --model"),
        (["--model", "there", "--name", "x", "--head", "here"], "--model: is a whole model; --head and --encoder"),
        (["--model", "{folder}", "--name", "x", "--calibrate", "{folder}/none"], "none"),
        (["--model", "{folder}", "--name", "x", "--calibrate", "{folder}/few"], "few: has 2 lines, calibrating needs"),
        (["--model", "{folder}", "--name", "x", "--eval", "{folder}/bad.csv"], "bad.csv:2: the model does not know"),
    ],
)
def test_wrong_options_are_one_line(
    own_state: Store,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    wrong: str,
) -> None:
    folder = tiny_models.make(tmp_path_factory.mktemp("model"), "bert")
    (folder / "few").write_text('{"text": "one"}\n{"text": "two"}\n')
    (folder / "bad.csv").write_text("text,label\nhello,weather\n")
    capsys.readouterr()
    assert main(["build", *(option.format(folder=folder) for option in options)]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("shared_model build: ")]
    assert wrong in line
    assert own_state.ids() == []
