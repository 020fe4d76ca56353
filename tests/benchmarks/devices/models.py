"""Encoders with random weights at published sizes: nothing is downloaded, and arithmetic does not depend on weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared_model.building import checkpoint
from shared_model.encoding import Encoder
from shared_model.engines.torch_engine import TorchEngine
from shared_model.heads import Heads
from shared_model.types import Device, Precision
from tests.shared_model import tiny_models

MAX_TOKENS = 512
#: Fields of a BERT's config.
SIZES: dict[str, dict[str, int]] = {
    "tiny": {},
    "bert-base": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": MAX_TOKENS,
    },
    "bert-large": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "max_position_embeddings": MAX_TOKENS,
    },
}
#: A word of one token.
_WORD, _SPECIAL = "card", 2


@dataclass(frozen=True)
class Subject:
    """A model as its folder, and as Tandem opens it."""

    name: str
    folder: Path
    config: dict[str, Any]
    files: Mapping[str, bytes]
    heads: Heads
    encoder: Encoder
    engine: TorchEngine


def subject(folder: Path, name: str, device: Device) -> Subject:
    """FP16 on the device."""
    made = tiny_models.make(folder / name, "bert", **SIZES[name])
    loaded = checkpoint.load(made)
    encoder = Encoder(loaded.files["tokenizer.json"], loaded.reads, release="")
    engine = TorchEngine(loaded.files, Precision.FP16, device)
    config = json.loads(loaded.files["config.json"])["model"]
    return Subject(name, made, config, loaded.files, Heads.of(loaded.output), encoder, engine)


def text(tokens: int) -> str:
    """A text of so many tokens for these models."""
    return " ".join([_WORD] * max(0, tokens - _SPECIAL))
