"""Several heads of one release: trained together, one layer, each judged by the gate."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch

from shared_model.__main__ import main
from shared_model.building import checkpoint, training_texts
from shared_model.building.head import Head, load_heads
from shared_model.errors import BadInput
from shared_model.evaluation import corpora, gate, report
from shared_model.evaluation.verdict import ReleaseReport
from shared_model.heads import Heads, HeadSpec
from shared_model.output import OutputKind, OutputSpec
from shared_model.releases.store import Release, Store
from tests.shared_model import tiny_builds, tiny_models

pytestmark = pytest.mark.heavy

INTENT = ("card", "pin", "rate")
MOOD = ("angry", "glad")
INT8 = ("int8/model.xml", "int8/model.bin")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make(tmp_path_factory.mktemp("encoder"), "bert", encoder=True)


def random_head(name: str, kind: OutputKind, *labels: str) -> Head:
    draw = np.random.default_rng(len(name))
    weight = draw.normal(0, 1, (len(labels), 32)).astype(np.float32)
    return Head(labels, weight, np.zeros(len(labels), np.float32), name, kind)


HEADS = (
    random_head("intent", OutputKind.SINGLE_LABEL, *INTENT),
    random_head("mood", OutputKind.MULTI_LABEL, *MOOD),
    random_head("stars", OutputKind.REGRESSION, "stars"),
)


@pytest.fixture(scope="module")
def built(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Release, ReleaseReport]:
    source = tiny_builds.surer(checkpoint.with_heads(encoder, HEADS))
    return tiny_builds.built(tmp_path_factory.mktemp("releases"), source)


def test_each_head_of_a_release_is_judged_and_reported(built: tuple[Release, ReleaseReport]) -> None:
    release, found = built
    assert release.heads == Heads(tuple(head.spec for head in HEADS))
    assert Store(release.files.root).open(release.id).heads == release.heads
    assert [head.head for head in found.every_head] == ["intent", "mood", "stars"]
    assert found.passed, [variant.failures for variant in found.variants]
    document = json.loads(release.read_note(report.JSON) or b"")
    for variant in document["variants"]:
        assert [head["head"] for head in variant["heads"]] == ["mood", "stars"]
        assert all(head["agreement"] > 0 for head in variant["heads"])
    page = (release.read_note(report.MARKDOWN) or b"").decode()
    assert "- head mood:\n- output: multi label\n- judged on 200 generated texts" in page
    assert re.search(r"^\| int8/cpu stars \|", page, re.MULTILINE)


def test_a_head_answers_as_it_does_in_a_release_of_its_own(encoder: Path, built: tuple[Release, ReleaseReport]) -> None:
    """One concatenated layer computes, row for row, what separate ones would."""
    asked = corpora.generated_texts(built[0].manifest.reads, 20)
    together = gate.release_evaluator(built[0], asked, tiny_builds.BOUNDS)
    whole = tiny_builds.surer(checkpoint.with_heads(encoder, HEADS))
    for head, judged in zip(HEADS, together.heads, strict=True):
        alone = tiny_builds.surer(checkpoint.with_heads(encoder, [head]))
        weights = [safetensors.torch.load(it.files["weights.safetensors"])["head.weight"] for it in (alone, whole)]
        assert (weights[0] == weights[1][judged.first_column : judged.first_column + len(head.labels)]).all()
        assert judged.own(together.reference).shape == (20, len(head.labels))


def test_a_variant_is_refused_for_any_head(built: tuple[Release, ReleaseReport], tmp_path: Path) -> None:
    """The INT8 graph here negates the mood head alone."""
    graph = built[0].read("openvino/model.bin")
    weight = safetensors.torch.load(built[0].read("weights.safetensors"))["head.weight"].numpy()
    turned = weight.copy()
    turned[3:5] *= -1
    assert weight.tobytes() in graph
    files = {INT8[0]: built[0].read("openvino/model.xml"), INT8[1]: graph.replace(weight.tobytes(), turned.tobytes())}
    release = tiny_builds.resealed(built[0], tmp_path, files)
    evaluator = gate.release_evaluator(
        release, corpora.generated_texts(release.manifest.reads, 200), tiny_builds.BOUNDS
    )
    found = gate.evaluate_release(release, evaluator, say=lambda line: None)
    refused = {variant.name: variant.failures for variant in found.variants}
    (failure,) = refused.pop("int8/cpu")
    assert failure.startswith("names exactly the reference's labels for ")
    assert failure.endswith(", as head mood")
    assert set(refused.values()) == {()}
    page = (release.read_note(report.MARKDOWN) or b"").decode()
    assert f"- int8/cpu {failure}\n" in page
    assert "| int8/cpu mood | " in page.partition("least excuse")[2]


TEXTS = ["my card was stolen", "I lost my card", "what is the rate", "is the rate good", "the PIN is wrong", "new PIN"]


def write(path: Path, *labels: str) -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(TEXTS * 3, labels * 3, strict=True)])
    return path


def test_the_command_trains_several_heads_and_build_judges_each_on_its_own_texts(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    intents = write(tmp_path / "a=b.csv", "card", "card", "rate", "rate", "pin", "pin")
    moods = write(tmp_path / "mood.csv", "angry|sad", "sad", "", "", "angry", "")
    stars = write(tmp_path / "stars.csv", "1", "2", "5", "4", "1.5", "3")
    out = tmp_path / "heads"
    given = [f"intent={intents}", f"mood:multi_label={moods}", f"stars:regression={stars}"]
    heads = [word for argument in given for word in ("--head", argument)]
    assert main(["train-head", *heads, "--encoder", str(encoder), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "training the head mood for 2 labels on 18 texts" in said
    assert re.search(r"^intent: accuracy \d+\.\d\d% in 5-fold", said, re.MULTILINE)
    assert re.search(r"^mood: exact match \d+\.\d\d% in 5-fold", said, re.MULTILINE)
    assert re.search(r"^stars: rank correlation -?\d+\.\d\d% in 5-fold", said, re.MULTILINE)
    assert [(head.name, head.kind, head.labels) for head in load_heads(out)] == [
        ("intent", OutputKind.SINGLE_LABEL, ("card", "pin", "rate")),
        ("mood", OutputKind.MULTI_LABEL, ("angry", "sad")),
        ("stars", OutputKind.REGRESSION, ("stars",)),
    ]
    kept = [json.loads(line)["text"] for line in (out / training_texts.FILE).read_text().splitlines()]
    assert sorted(kept) == sorted(TEXTS)

    monkeypatch.setenv("TANDEM_STATE", str(tmp_path / "state"))
    for name, value in (("MIN_AGREEMENT", "0.01"), ("MIN_LABELLED_AGREEMENT", "0.01"), ("BEAT_CHANCE", "0")):
        monkeypatch.setenv(f"TANDEM_GATE_{name}", value)
    for name in ("LATENCY_MS", "BATCH_MS", "MAX_ACCURACY_DROP"):
        monkeypatch.setenv(f"TANDEM_GATE_{name}", "10000")
    evaluated = [
        "--eval",
        str(intents),
        "--eval",
        f"mood={moods}",
        "--abstain-below",
        "mood=0.6",
        "--abstain-on",
        "pin",
    ]
    assert main(["build", "--name", "three", "--head", str(out), "--encoder", str(encoder), *evaluated]) == 0
    said = capsys.readouterr().out
    assert f"{intents}: text from column 'text', label from column 'label'" in said
    assert re.search(r"int8/cpu: intent: agreement .*; mood: agreement .*, exact match .*; stars: agreement ", said)
    (release,) = (Store(tmp_path / "state/releases").open(it) for it in Store(tmp_path / "state/releases").ids())
    document = json.loads(release.read_note(report.JSON) or b"")
    assert (document["head"], document["evaluation"]) == ("intent", "labelled")
    evaluations = {head["head"]: (head["evaluation"], bool(head["quality"])) for head in document["heads"]}
    assert evaluations == {"mood": ("labelled", True), "stars": ("generated", False)}
    assert main(["show", "three"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^head intent +single_label, 3: card, pin, rate; abstains on pin$", said, re.MULTILINE)
    assert re.search(r"^head mood +multi_label, 2: angry, sad; abstains below 0.6$", said, re.MULTILINE)
    assert re.search(r"^gate +passed.*; expected calibration error 0\.\d+, mood 0\.\d+$", said, re.MULTILINE)
    assert re.search(r"^fp32/cpu .*; mood, agreement 100.00%.*, accuracy .*; stars, agreement", said, re.MULTILINE)
    assert main(["list"]) == 0
    assert re.search(r"active +mood \d+\.\d\d%, stars –$", capsys.readouterr().out.strip())


def test_a_difference_of_heads_is_told(
    built: tuple[Release, ReleaseReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    old = tiny_builds.resealed(built[0], tmp_path)
    mood = HeadSpec("mood", OutputSpec(OutputKind.MULTI_LABEL, ("angry", "sad"), 2, abstain_below=0.7))
    scope = HeadSpec("in_scope", OutputSpec(OutputKind.REGRESSION, ("x",), 1))
    new = tiny_builds.resealed(built[0], tmp_path, further=(mood, scope))
    assert old.id != new.id
    monkeypatch.setenv("TANDEM_RELEASES", str(tmp_path))
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path / "state"))
    assert main(["diff", old.id, new.id]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^heads +intent, mood, stars → intent, mood, in_scope$", said, re.MULTILINE)
    assert re.search(r"^head mood +1 added: sad$", said, re.MULTILINE)
    assert re.search(r"^mood abstaining +never → below 0.7$", said, re.MULTILINE)


def test_a_classifier_may_hold_several_heads(tmp_path: Path) -> None:
    listed = [
        {"name": "intent", "problem_type": "single_label_classification", "labels": ["no", "yes"]},
        {"name": "stars", "problem_type": "regression", "labels": ["stars"]},
    ]
    folder = tiny_models.make(tmp_path / "model", "bert", tandem_heads=listed)
    loaded = checkpoint.load(folder)
    assert [(spec.name, spec.output.kind, spec.output.names) for spec in loaded.heads.specs] == [
        ("intent", "single_label", ("no", "yes")),
        ("stars", "regression", ("stars",)),
    ]
    for change, problem in (
        ([*listed, {**listed[1], "name": "more"}], "has 4 labels, the classification layer 3 rows"),
        ([listed[0], {**listed[1], "name": "intent"}], "each with a name of its own"),
        ([{"name": "intent"}], "tandem_heads has no 'problem_type'"),
    ):
        tiny_models.edit(folder / "config.json", tandem_heads=change)
        with pytest.raises(BadInput, match=problem):
            checkpoint.load(folder)


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("mood.csv", r"is not NAME\[:KIND\]=CSV"),
        ("mood:embedding=mood.csv", r"is not NAME\[:KIND\]=CSV"),
        ("Mood=mood.csv", "head name 'Mood'"),
    ],
)
def test_a_head_that_cannot_be_is_refused(
    argument: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train-head", "--head", argument, "--out", str(tmp_path)]) == 2
    assert re.search(problem, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("kind", "labels", "problem"),
    [
        ("single_label", ["x", "x"], "label of the head mood: training needs at least two labels"),
        ("multi_label", ["", ""], "label of the head mood: training needs at least one label"),
        ("multi_label", ["x", "x|y"], "label of the head mood: 'x' is on every text"),
        ("regression", ["1|2", "3"], "mood.csv:3: label '3': needs 2 finite numbers, joined by |"),
    ],
)
def test_labels_that_cannot_be_learnt_are_named_with_their_head(
    encoder: Path,
    kind: str,
    labels: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with Path("mood.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((f"card {n}", label) for n, label in enumerate(labels))])
    arguments = ["train-head", "--head", f"mood:{kind}=mood.csv", "--encoder", str(encoder), "--out", "head"]
    assert main(arguments) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(f"shared_model train-head: {problem}")
    assert not Path("head").exists()
