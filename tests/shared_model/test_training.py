"""A head is trained from a CSV of text and label, by the command the model card names."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shared_model import training
from shared_model.__main__ import main
from shared_model.commands.building import HEADS
from shared_model.encoding import Encoder, collate
from shared_model.engines.torch_engine import TorchEngine
from shared_model.errors import BadInput
from shared_model.examples import read_examples
from shared_model.releases import build, checkpoint
from shared_model.training import Head
from shared_model.types import Device, Precision

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
    source = checkpoint.with_head(build.default_encoder(), head)
    encoder = Encoder(source.files["tokenizer.json"], source.reads, release="")
    engine = TorchEngine(source.files, Precision.FP32, Device.CPU)
    scores = source.output.scores(engine.score(collate(encoder.encode_many(texts))))
    engine.close()
    assert scores.shape == (len(texts), len(head.labels))
    return [(head.labels[row.argmax()], float(row.max())) for row in scores]


@pytest.mark.parametrize("labels", [["lost", "rate", "thanks"], ["rate", "thanks"]])
def test_the_command_trains_a_head_that_tells_its_labels_apart(trained: Trained, labels: list[str]) -> None:
    head = training.load_head(trained(*labels))
    assert head.labels == tuple(labels)
    assert head.weight.shape == (len(labels), 384)
    assert head.weight.dtype == head.bias.dtype == np.float32
    (rate, _), (label, probability) = predict(head, "what rate do I get for yen", "thank you")
    assert rate == "rate"
    assert label == "thanks"
    assert probability > 1 / len(labels)


def test_training_is_repeatable(trained: Trained, tmp_path: Path) -> None:
    labels = ["lost", "rate", "thanks"]
    first = training.load_head(trained(*labels))
    second = training.train(build.default_encoder(), read_examples(write_csv(tmp_path / "train.csv", labels)))
    assert (first.weight == second.weight).all()
    assert (first.bias == second.bias).all()


def test_the_committed_head_is_whole() -> None:
    head = training.load_head(HEADS / "banking77")
    assert len(head.labels) == len(set(head.labels)) == 77
    assert head.weight.shape == (77, 384)
    assert np.isfinite(head.weight).all()


def test_one_label_is_not_a_choice(tmp_path: Path) -> None:
    examples = read_examples(write_csv(tmp_path / "one.csv", ["lost"]))
    with pytest.raises(BadInput, match="at least two labels"):
        training.train(build.default_encoder(), examples)


@pytest.mark.parametrize("damage", ["labels", "weights"])
def test_a_damaged_head_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    Head(("a", "b"), np.zeros((2, 4), np.float32), np.zeros(2, np.float32)).save(tmp_path)
    if damage == "labels":
        (tmp_path / "labels.json").write_text('["a"]')
    else:
        (tmp_path / "head.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(BadInput, match=str(tmp_path)):
        training.load_head(tmp_path)
