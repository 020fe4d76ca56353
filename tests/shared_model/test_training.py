"""A head is trained from a CSV of text and label, by the command the model card names."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_model import training
from shared_model.__main__ import HEADS, main
from shared_model.encoding import Encoder, collate
from shared_model.engine import probabilities
from shared_model.engines.torch_encoder import TorchEngine
from shared_model.errors import BadInput
from shared_model.releases import build, convert
from shared_model.training import Examples, Head
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


def predict(head: Head, text: str) -> tuple[str, float]:
    folder = build.default_encoder()
    encoder = Encoder((folder / "tokenizer.json").read_bytes(), build.MAX_TOKENS, release="")
    engine = TorchEngine(convert.checkpoint_files(folder, head), Precision.FP32, Device.CPU)
    scores = probabilities(engine.score(collate([encoder.encode(text)])))[0]
    assert scores.shape == (len(head.labels),)
    return head.labels[scores.argmax()], float(scores.max())


@pytest.mark.parametrize("labels", [["lost", "rate", "thanks"], ["rate", "thanks"]])
def test_the_command_trains_a_head_that_tells_its_labels_apart(tmp_path: Path, labels: list[str]) -> None:
    data = write_csv(tmp_path / "train.csv", labels)
    assert main(["train-head", "--data", str(data), "--out", str(tmp_path / "head")]) == 0
    head = training.load_head(tmp_path / "head")
    assert head.labels == tuple(labels)
    assert head.weight.shape == (len(labels), 384)
    assert head.weight.dtype == head.bias.dtype == np.float32
    assert predict(head, "what rate do I get for yen")[0] == "rate"
    label, probability = predict(head, "thank you")
    assert label == "thanks"
    assert probability > 1 / len(labels)


def test_training_is_repeatable(tmp_path: Path) -> None:
    examples = training.read_examples(write_csv(tmp_path / "train.csv", ["lost", "rate", "thanks"]))
    first, second = (training.train(build.default_encoder(), examples, build.MAX_TOKENS) for _ in range(2))
    assert (first.weight == second.weight).all()
    assert (first.bias == second.bias).all()


def test_the_committed_head_is_whole() -> None:
    head = training.load_head(HEADS / "banking77")
    assert len(head.labels) == len(set(head.labels)) == 77
    assert head.weight.shape == (77, 384)
    assert np.isfinite(head.weight).all()


@pytest.mark.parametrize(
    ("contents", "wrong"),
    [
        (b"text,label\nhello,a\n,b\n", "3: needs a text and a label"),
        (b"text,label\nhello\n", "2: needs a text and a label"),
        (b"text,label\nhello,  \n", "2: needs a text and a label"),
        (b'text,label\n"two\nlines",a\nhello\n', "4: needs a text and a label"),
        (b"text,label\n\xff\xfe,a\n", "is not UTF-8"),
        (b"text,label\n", "has no examples"),
        (b"", "has no examples"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, contents: bytes, wrong: str) -> None:
    (tmp_path / "bad.csv").write_bytes(contents)
    with pytest.raises(BadInput, match=rf"bad\.csv:? ?{wrong}"):
        training.read_examples(tmp_path / "bad.csv")


def test_one_label_is_not_a_choice(tmp_path: Path) -> None:
    examples = training.read_examples(write_csv(tmp_path / "one.csv", ["lost"]))
    with pytest.raises(BadInput, match="at least two labels"):
        training.train(build.default_encoder(), examples, build.MAX_TOKENS)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip), min_size=1))
def test_texts_come_back_as_they_were_quoted(texts: list[str]) -> None:
    quoted = ['"' + text.replace('"', '""') + '",label' for text in texts]
    assert training.parse_examples("\n".join(["text,label", *quoted]), "there.csv") == (texts, ["label"] * len(texts))


@pytest.mark.parametrize("damage", ["labels", "weights"])
def test_a_damaged_head_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    Head(("a", "b"), np.zeros((2, 4), np.float32), np.zeros(2, np.float32)).save(tmp_path)
    if damage == "labels":
        (tmp_path / "labels.json").write_text('["a"]')
    else:
        (tmp_path / "head.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(BadInput, match=str(tmp_path)):
        training.load_head(tmp_path)


def test_examples_carry_the_hash_of_their_file(tmp_path: Path) -> None:
    contents = b"text,label\nhello,a\n"
    (tmp_path / "data.csv").write_bytes(contents)
    expected = Examples(["hello"], ["a"], hashlib.sha256(contents).hexdigest())
    assert training.read_examples(tmp_path / "data.csv") == expected
