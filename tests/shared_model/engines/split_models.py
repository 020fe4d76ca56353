"""Tiny models of every packed family whose heads 2, 3 and 4 ranks can share, and the texts to try them with."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared_model.batches import PackedBatch, pack
from shared_model.building import checkpoint
from shared_model.encoding import Encoder, Encoding, Text
from shared_model.engines.torch_engine import TorchEngine
from shared_model.heads import Heads
from shared_model.types import Device, Precision
from tests.shared_model import tiny_models

PACKED = sorted(tiny_models.FAMILIES.keys() - {"deberta-v2", "mpnet"})
TEXTS: list[Text] = [*tiny_models.corpus()[:12], "", "card", "card " * 100, "my <pad> card"]
_HEADS = {"hidden_size": 48, "num_attention_heads": 12}


@dataclass(frozen=True)
class SplitModel:
    """A model's files, its engine in one piece, and the encoded TEXTS."""

    files: dict[str, bytes]
    heads: Heads
    whole: TorchEngine
    encodings: list[Encoding]

    def batch(self, rows: Iterable[int]) -> PackedBatch:
        return pack([self.encodings[row] for row in rows])

    def delta(self, raw: NDArray[np.float32], batch: PackedBatch) -> float:
        """Largest difference of a score from that of the model in one piece."""
        return float(np.abs(self.heads.scores(raw) - self.heads.scores(self.whole.start(batch).result())).max())


def split_model(folder: Path, family: str) -> SplitModel:
    loaded = checkpoint.load(tiny_models.make(folder, family, **_HEADS))
    encoder = Encoder(loaded.files["tokenizer.json"], loaded.reads, release="")
    whole = TorchEngine(loaded.files, Precision.FP32, Device.CPU)
    return SplitModel(loaded.files, Heads.of(loaded.output), whole, encoder.encode_many(TEXTS))
