"""A folder that cannot become a release is refused in one line that says where and what."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from shared_model.building import checkpoint
from shared_model.building.head import Head
from shared_model.errors import BadInput
from tests.shared_model import tiny_models
from tests.shared_model.tiny_models import edit, rewrite_weights

#: Damages a folder.
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A classifier and an encoder, which are copied before they are changed."""
    root = tmp_path_factory.mktemp("originals")
    return (tiny_models.make(root / "bert", "bert"), tiny_models.make(root / "encoder", "bert", encoder=True))


@pytest.fixture
def bert(originals: tuple[Path, Path], tmp_path: Path) -> Path:
    return tiny_models.copy(originals[0], tmp_path / "bert")


@pytest.fixture
def encoder(originals: tuple[Path, Path], tmp_path: Path) -> Path:
    return tiny_models.copy(originals[1], tmp_path / "encoder")


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut(name: str) -> Change:
    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return change


def configured(**fields: Any) -> Change:
    return lambda folder: edit(folder / "config.json", **fields)


def without(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def weights(change: Callable[[dict[str, Any]], Any]) -> Change:
    return lambda folder: rewrite_weights(folder, change)


def index_outside(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    edit(folder / "model.safetensors.index.json", weight_map={"classifier.bias": "../other/model.safetensors"})


REFUSALS: dict[str, tuple[Change, str]] = {
    "no config": (without("config.json"), r"has no config\.json"),
    "damaged config": (cut("config.json"), r"config\.json: is not JSON"),
    "config of another shape": (lambda f: (f / "config.json").write_text("[1]"), r"config\.json: holds no"),
    "no model type": (configured(model_type=None), "names no model_type"),
    "unknown model type": (configured(model_type="bort"), r"config\.json: describes no model that can be built.*bort"),
    "a type without classifiers": (configured(model_type="vit"), r"config\.json: describes no model that can be built"),
    "nonsense in the config": (configured(num_hidden_layers="two"), r"config\.json: describes no model"),
    "code of its own": (configured(auto_map={"AutoModel": "modeling.Mine"}), r"auto_map.*never run"),
    "a tokenizer with code of its own": (
        lambda f: edit(f / "tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.Mine", None]}),
        r"auto_map.*never run",
    ),
    "another kind": (configured(architectures=["BertForMaskedLM"]), "neither .* an encoder: BertForMaskedLM"),
    "no named architecture": (configured(architectures=None), "neither .* an encoder: unnamed"),
    "names twice": (configured(id2label={"0": "a", "1": "a", "2": "b"}), r"config\.json: .* cannot have 2 names"),
    "another problem": (configured(problem_type="ranking"), r"config\.json: problem_type 'ranking' is not one of"),
    "only pickled weights": (only_pickled, r"has no model\.safetensors \(its pytorch_model\.bin .* save_pretrained"),
    "no weights": (without("model.safetensors"), r"has no model\.safetensors;"),
    "cut weights": (cut("model.safetensors"), r"model\.safetensors: cannot be read"),
    "an index that leaves the folder": (index_outside, r"'\.\./other/model\.safetensors' is not a file of this folder"),
    "no head": (weights(lambda t: t.pop("classifier.weight")), r"classifier\.weight is missing"),
    "a missing layer": (
        weights(lambda t: t.pop("bert.encoder.layer.1.output.dense.weight")),
        r"bert\.encoder\.layer\.1\.output\.dense\.weight is missing",
    ),
    "another head": (weights(lambda t: t.update({"qa.bias": torch.zeros(2)})), r"qa\.bias has no place"),
    "fewer labels": (configured(id2label={"0": "a", "1": "b"}), r"classifier\.bias is of another shape"),
    "a larger model": (configured(num_hidden_layers=3), r"bert\.encoder\.layer\.2\..* is missing"),
    "no tokenizer": (without("tokenizer.json"), "has no tokenizer"),
    "damaged tokenizer": (cut("tokenizer.json"), "its tokenizer cannot be used"),
    "tokenizer of another model": (
        lambda f: (f / "tokenizer.json").write_text(larger_tokenizer(f)) and None,
        r"its tokenizer makes ids up to \d+, its model knows \d+",
    ),
    "no room for text": (configured(max_position_embeddings=7), "is of another shape"),
}


def larger_tokenizer(folder: Path) -> str:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["tandem"])
    return str(tokenizer.to_str())


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_in_one_line(
    bert: Path, case: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    change, says = REFUSALS[case]
    change(bert)
    capfd.readouterr()
    caplog.clear()
    with pytest.raises(BadInput, match=says) as refusal:
        checkpoint.load(bert)
    assert "".join(capfd.readouterr()) == ""
    assert caplog.messages == []
    assert "\n" not in str(refusal.value)
    assert str(bert) in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "contents", "says"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "pooling by max is not supported"),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "cls"]}, "pooling by mean and cls is not supported"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pooling by pooling_mode_max_tokens is not"),
        ("modules.json", [{"type": "sentence_transformers.models.Dense"}], "a Dense layer has no place in a release"),
        ("modules.json", {}, r"modules\.json: holds no JSON list"),
        ("modules.json", [{"name": "0"}], r"modules\.json: a None layer"),
    ],
)
def test_embeddings_made_in_another_way_are_refused(encoder: Path, name: str, contents: Any, says: str) -> None:
    (encoder / name).parent.mkdir(exist_ok=True)
    (encoder / name).write_text(json.dumps(contents))
    with pytest.raises(BadInput, match=says):
        checkpoint.load(encoder)


@pytest.mark.parametrize("padding", [1, None])
def test_a_decoder_that_takes_padding_for_text_is_refused(tmp_path: Path, padding: int | None) -> None:
    folder = tiny_models.make(tmp_path, "gpt2", pad_token_id=padding)
    with pytest.raises(BadInput, match="depend on the padding behind a text"):
        checkpoint.load(folder)


def head(width: int) -> Head:
    return Head(("a", "b"), np.zeros((2, width), np.float32), np.zeros(2, np.float32))


def test_a_head_of_another_encoder_is_refused(encoder: Path) -> None:
    with pytest.raises(BadInput, match="makes 32 numbers of a text, the head was trained on 48"):
        checkpoint.with_heads(encoder, [head(48)])


def test_a_head_on_a_classifier_is_refused(bert: Path) -> None:
    with pytest.raises(BadInput, match="is a classifier already"):
        checkpoint.with_heads(bert, [head(32)])
