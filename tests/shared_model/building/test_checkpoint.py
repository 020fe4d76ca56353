"""Reading a model folder, and finding it."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import torch
import transformers
from tokenizers import Tokenizer

from shared_model.building import checkpoint
from shared_model.engines.torch_model import load_module
from shared_model.errors import BadInput
from tests.shared_model import tiny_models
from tests.shared_model.tiny_models import edit


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders that are copied before they are changed."""
    root = tmp_path_factory.mktemp("originals")
    made = {
        "bert": tiny_models.make(root / "bert", "bert"),
        "roberta": tiny_models.make(root / "roberta", "roberta"),
        "encoder": tiny_models.make(root / "encoder", "bert", encoder=True),
    }
    return made.__getitem__


@pytest.fixture
def bert(originals: Callable[[str], Path], tmp_path: Path) -> Path:
    return tiny_models.copy(originals("bert"), tmp_path / "bert")


@pytest.fixture
def encoder(originals: Callable[[str], Path], tmp_path: Path) -> Path:
    return tiny_models.copy(originals("encoder"), tmp_path / "encoder")


def test_the_parent_is_the_hash_of_the_weights(bert: Path) -> None:
    assert checkpoint.load(bert).parent == hashlib.sha256((bert / "model.safetensors").read_bytes()).hexdigest()


def test_weights_in_several_files(bert: Path, tmp_path: Path) -> None:
    sharded = tiny_models.copy(bert, tmp_path / "sharded")
    (sharded / "model.safetensors").unlink()
    model = transformers.AutoModelForSequenceClassification.from_pretrained(bert)
    model.save_pretrained(sharded, max_shard_size="40KB")
    shards = sorted(sharded.glob("model-*.safetensors"))
    assert len(shards) > 2
    whole, parts = checkpoint.load(bert), checkpoint.load(sharded)
    assert parts.files == whole.files
    listing = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in shards)
    assert parts.parent == hashlib.sha256(listing.encode()).hexdigest()
    shards[0].unlink()
    with pytest.raises(BadInput, match=re.escape(shards[0].name)):
        checkpoint.load(sharded)


def test_weights_saved_in_half_precision_become_fp32(bert: Path, tmp_path: Path) -> None:
    half = tiny_models.copy(bert, tmp_path / "half")
    transformers.AutoModelForSequenceClassification.from_pretrained(bert).half().save_pretrained(half)
    assert json.loads((half / "config.json").read_text())["dtype"] == "float16"
    loaded = checkpoint.load(half)
    assert {value.dtype for value in safetensors.torch.load(loaded.files["weights.safetensors"]).values()} == {
        torch.float32
    }
    assert {value.dtype for value in load_module(loaded.files).parameters()} == {torch.float32}


def test_names_of_old_checkpoints_are_understood(bert: Path) -> None:
    expected = checkpoint.load(bert)

    def as_in_2019(loaded: dict[str, Any]) -> None:
        for name in [name for name in loaded if "LayerNorm" in name]:
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            loaded[old] = loaded.pop(name)
        loaded["bert.embeddings.position_ids"] = torch.arange(64)[None]

    tiny_models.rewrite_weights(bert, as_in_2019)
    assert checkpoint.load(bert).files == expected.files


def test_where_its_author_kept_it_changes_nothing(bert: Path) -> None:
    before = checkpoint.load(bert)
    edit(bert / "config.json", _name_or_path="/home/somebody/secret-project")
    assert checkpoint.load(bert).files == before.files


def test_labels_come_in_the_order_of_their_ids(bert: Path) -> None:
    edit(bert / "config.json", id2label={"2": "third", "0": "first", "1": "second"}, label2id=None)
    assert checkpoint.load(bert).output.names == ("first", "second", "third")


def test_a_vocabulary_becomes_a_tokenizer(bert: Path) -> None:
    tokenizer = Tokenizer.from_file(str(bert / "tokenizer.json"))
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    (bert / "tokenizer.json").unlink()
    (bert / "vocab.txt").write_text("".join(f"{word}\n" for word, _ in words))
    edit(bert / "tokenizer_config.json", tokenizer_class="BertTokenizer", backend=None)
    converted = Tokenizer.from_buffer(checkpoint.load(bert).files["tokenizer.json"])
    assert converted.encode("is my Card here?").ids == tokenizer.encode("is my Card here?").ids


@pytest.mark.parametrize(
    ("family", "files", "asked", "tokens"),
    [
        ("bert", {}, None, 64),
        ("bert", {}, 50, 48),
        ("roberta", {}, None, 64),  # 66 positions, of which RoBERTa never uses two
        ("bert", {"tokenizer_config.json": {"model_max_length": 30}}, None, 24),
        ("bert", {"tokenizer_config.json": {"model_max_length": 10**30}}, None, 64),
        ("encoder", {"sentence_bert_config.json": {"max_seq_length": 40}}, None, 40),
        ("encoder", {"sentence_bert_config.json": {"max_seq_length": 40}}, 64, 64),
    ],
)
def test_the_longest_text(
    originals: Callable[[str], Path],
    tmp_path: Path,
    family: str,
    files: dict[str, dict[str, Any]],
    asked: int | None,
    tokens: int,
) -> None:
    folder = tiny_models.copy(originals(family), tmp_path / family)
    for name, fields in files.items():
        edit(folder / name, **fields)
    assert checkpoint.load(folder, max_tokens=asked).reads.max_tokens == tokens


def test_more_than_the_default_has_to_be_asked_for(tmp_path: Path) -> None:
    folder = tiny_models.make(tmp_path, "modernbert", max_position_embeddings=4096)
    assert checkpoint.load(folder).reads.max_tokens == 512
    assert checkpoint.load(folder, max_tokens=2048).reads.max_tokens == 2048


@pytest.mark.parametrize(("family", "asked", "most"), [("bert", 65, 64), ("bert", 7, 64), ("roberta", 66, 64)])
def test_more_than_the_model_has_positions_for(
    originals: Callable[[str], Path], family: str, asked: int, most: int
) -> None:
    with pytest.raises(BadInput, match=rf"max_tokens: is {asked}; .* reads 8 to {most}"):
        checkpoint.load(originals(family), max_tokens=asked)


# The hub.


def test_the_hub_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(BadInput, match=r"^team/intents: .* the hub cannot be reached: .*; fetch the model elsewhere"):
        checkpoint.load("team/intents")


def test_a_model_fetched_before_needs_no_hub(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    stored = tmp_path / "cache" / "models--team--intents"
    commit = "0" * 40
    tiny_models.copy(bert, stored / "snapshots" / commit)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text(commit)
    assert checkpoint.load("team/intents") == checkpoint.load(bert)


@pytest.mark.parametrize("name", ["no/such/folder", "../somewhere", "a b", "\0"])
def test_neither_a_folder_nor_a_name_on_the_hub(name: str) -> None:
    with pytest.raises(BadInput, match="is no folder here, and no name of a model on the hub"):
        checkpoint.load(name)
