"""A head is trained from a CSV of text and label, by the command the model card names."""

import functools
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shared_model.__main__ import main
from shared_model.building import build, checkpoint, fit_head, train_head, training_texts
from shared_model.building.head import Head, load_heads, save_heads
from shared_model.building.train_head import Task
from shared_model.commands.make_release import HEADS
from shared_model.encoding import Encoder, collate
from shared_model.engines.torch_engine import TorchEngine
from shared_model.errors import BadInput
from shared_model.evaluation.examples import read_examples
from shared_model.output import OutputKind
from shared_model.types import Device, Precision
from tests.shared_model import tiny_models

pytestmark = pytest.mark.heavy

EXAMPLES = {
    "lost": ["my card was stolen", "I lost my card", "somebody took my card", "I can't find my card any more"],
    "rate": ["what is the exchange rate", "is the rate for dollars good", "how do you set the rate", "the rate is bad"],
    "thanks": ["thanks a lot", "thank you!", "many thanks", "thank you so much"],
}


def write_csv(path: Path, labels: list[str]) -> Path:
    lines = [f'"{text}",{label}' for label in labels for text in EXAMPLES[label]]
    path.write_text("\n".join(["text,label", *lines]) + "\n")
    return path


Trained = Callable[..., Path]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Folder of the head that the command trains on examples of the labels given, each once."""

    @functools.cache
    def by_the_command(*labels: str) -> Path:
        folder = tmp_path_factory.mktemp("head")
        data = write_csv(folder / "train.csv", list(labels))
        assert main(["train-head", "--data", str(data), "--out", str(folder)]) == 0
        return folder

    return by_the_command


def predict(head: Head, *texts: str) -> list[tuple[str, float]]:
    source = checkpoint.with_heads(build.default_encoder(), [head])
    encoder = Encoder(source.files["tokenizer.json"], source.reads, release="")
    engine = TorchEngine(source.files, Precision.FP32, Device.CPU)
    scores = source.output.scores(engine.score(collate(encoder.encode_many(texts))))
    engine.close()
    assert scores.shape == (len(texts), len(head.labels))
    return [(head.labels[row.argmax()], float(row.max())) for row in scores]


@pytest.mark.parametrize(
    "labels", [["lost", "rate", "thanks"], pytest.param(["rate", "thanks"], marks=pytest.mark.proof)]
)
def test_the_command_trains_a_head_that_tells_its_labels_apart(trained: Trained, labels: list[str]) -> None:
    [head] = load_heads(trained(*labels))
    assert head.labels == tuple(labels)
    assert head.weight.shape == (len(labels), 384)
    assert head.weight.dtype == head.bias.dtype == np.float32
    (rate, _), (label, probability) = predict(head, "what rate do I get for yen", "thank you")
    assert rate == "rate"
    assert label == "thanks"
    assert probability > 1 / len(labels)


def test_training_is_repeatable(trained: Trained, tmp_path: Path) -> None:
    labels = ["lost", "rate", "thanks"]
    [first] = load_heads(trained(*labels))
    examples = read_examples(write_csv(tmp_path / "train.csv", labels))
    [second] = [it.head for it in train_head.train(build.default_encoder(), [Task(examples)])]
    assert (first.weight == second.weight).all()
    assert (first.bias == second.bias).all()


def test_the_committed_head_is_whole() -> None:
    [head] = load_heads(HEADS / "banking77")
    assert len(head.labels) == len(set(head.labels)) == 77
    assert head.weight.shape == (77, 384)
    assert np.isfinite(head.weight).all()


def test_the_command_says_what_it_read_how_good_it_is_and_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a CSV without a header line the first message is one too. The encoder is tiny and random, so the accuracy is
    low."""
    encoder = tiny_models.make(tmp_path / "encoder", "bert", encoder=True)
    data = write_csv(tmp_path / "train.csv", list(EXAMPLES))
    data.write_text("".join(data.read_text().splitlines(keepends=True)[1:]) + "what a day,lonely\n")
    out = tmp_path / "My Head"
    assert main(["train-head", "--data", str(data), "--encoder", str(encoder), "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(
        f"{data}: no header line, its first line is an example; text from column 1, label from column 2"
    )
    assert lines[1].endswith("training a head for 4 labels on 13 texts")
    assert lines[2] == "texts per label: 1 at least, median 4"
    assert lines[3] == "fewer than 10 texts, too few to learn from: lonely (1), lost (4), rate (4), thanks (4)"
    (accuracy,) = re.findall(r"^accuracy (.*)% in 4-fold cross-validation$", lines[4])
    # The label with one text is never right.
    assert 0 < float(accuracy) <= 92.31
    kept = f"13 training texts kept in {out}/training-texts.jsonl for build to calibrate on"
    assert lines[-2] == f"{kept}; --no-keep-texts keeps none"
    options = f"--name my-head --head '{out}' --encoder {encoder}"
    assert lines[-1] == f"next: python -m shared_model build {options} --eval HELD-OUT.csv"


def test_texts_are_kept_for_their_owner_alone_unless_they_are_not_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = tiny_models.make(tmp_path / "encoder", "bert", encoder=True)
    data, out = tmp_path / "train.csv", tmp_path / "head"
    texts = [f"about {topic} number {number}" for number in range(1100) for topic in ("cards", "Cards", "pins")]
    data.write_text("text,label\n" + "".join(f"{text},{text.split()[1].lower()}\n" for text in texts))
    command = ["train-head", "--data", str(data), "--encoder", str(encoder), "--out", str(out)]
    previous = os.umask(0)
    try:
        assert main(command) == 0
    finally:
        os.umask(previous)
    file = out / training_texts.FILE
    assert training_texts.find(out) == file
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = [json.loads(line)["text"] for line in file.read_text().splitlines()]
    assert len(kept) == len({text.lower() for text in kept}) == 2000
    assert set(kept) < set(texts)
    assert "--calibrate" not in capsys.readouterr().out.splitlines()[-1]
    # Those of an earlier training must not be calibrated on.
    assert main([*command, "--no-keep-texts"]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["head.safetensors", "labels.json"]
    assert training_texts.find(out) is None
    assert f"--calibrate {data}" in capsys.readouterr().out.splitlines()[-1]


def test_labels_that_texts_do_not_tell_apart_are_no_better_than_chance() -> None:
    """The same vectors trained on would give 100 %: folds keep texts out."""
    vectors = np.random.default_rng(5).normal(size=(200, 300)).astype(np.float32)
    folds, accuracy = fit_head.cross_validated(OutputKind.SINGLE_LABEL, vectors, np.array([0, 1] * 100))
    assert folds == 5
    assert accuracy == pytest.approx(0.5, abs=0.12)


def test_two_texts_are_too_few_to_cross_validate() -> None:
    vectors = np.eye(3, dtype=np.float32)
    folds, accuracy = fit_head.cross_validated(OutputKind.SINGLE_LABEL, vectors, np.array([0, 0, 1]))
    assert (folds, accuracy) == (0, None)
    head = Head(("a", "b"), vectors[:2], vectors[0, :2])
    *_, last = train_head.in_words(["a", "a", "b"], fit_head.Trained(head, folds, accuracy))
    assert last == "accuracy not known: cross-validation needs two labels with two texts or more"


def test_one_label_is_not_a_choice(tmp_path: Path) -> None:
    examples = read_examples(write_csv(tmp_path / "one.csv", ["lost"]))
    with pytest.raises(BadInput, match="at least two labels"):
        train_head.train(build.default_encoder(), [Task(examples)])


@pytest.mark.parametrize("damage", ["labels", "weights"])
def test_a_damaged_head_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    save_heads(tmp_path, [Head(("a", "b"), np.zeros((2, 4), np.float32), np.zeros(2, np.float32))])
    if damage == "labels":
        (tmp_path / "labels.json").write_text('["a"]')
    else:
        (tmp_path / "head.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(BadInput, match=str(tmp_path)):
        load_heads(tmp_path)
