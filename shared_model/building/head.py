"""A linear head on sentence embeddings, and its folder format."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from shared_model.errors import BadInput


@dataclass(frozen=True)
class Head:
    """weight: fp32 (labels, hidden). bias: fp32 (labels,)."""

    labels: tuple[str, ...]
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        safetensors.numpy.save_file({"weight": self.weight, "bias": self.bias}, folder / "head.safetensors")
        (folder / "labels.json").write_text(json.dumps(self.labels, indent=1) + "\n")


def load_head(folder: Path) -> Head:
    """Raises: BadInput if the folder holds no valid head."""
    try:
        tensors = safetensors.numpy.load_file(folder / "head.safetensors")
        labels = tuple(json.loads((folder / "labels.json").read_text()))
        head = Head(labels, tensors["weight"], tensors["bias"])
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise BadInput(str(folder), "its head is damaged; train it again") from error
    if not len(head.labels) == len(head.weight) == len(head.bias):
        raise BadInput(str(folder), f"has {len(head.labels)} labels for {len(head.weight)} outputs; train it again")
    return head
