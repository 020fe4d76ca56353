"""Linear heads on sentence embeddings, and their folder format."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from shared_model.errors import BadInput
from shared_model.heads import DEFAULT_HEAD, Heads, HeadSpec
from shared_model.output import OutputKind, OutputSpec

_TENSORS, _LABELS, _HEADS = "head.safetensors", "labels.json", "heads.json"


@dataclass(frozen=True)
class Head:
    """labels: of the outputs, or names of the values of a regression. weight: fp32 (labels, hidden). bias: fp32
    (labels,)."""

    labels: tuple[str, ...]
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    name: str = DEFAULT_HEAD
    kind: OutputKind = OutputKind.SINGLE_LABEL

    @property
    def spec(self) -> HeadSpec:
        return HeadSpec(self.name, OutputSpec(self.kind, self.labels, len(self.labels)))


def save_heads(folder: Path, heads: Sequence[Head]) -> None:
    """Write heads to a folder, in place of those that it holds: labels.json beside the weights of one head without a
    name of its own, else heads.json with name, kind and labels of each. Raises: OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in (_LABELS, _HEADS):
        (folder / earlier).unlink(missing_ok=True)
    if [(head.name, head.kind) for head in heads] == [(DEFAULT_HEAD, OutputKind.SINGLE_LABEL)]:
        (folder / _LABELS).write_text(json.dumps(heads[0].labels, indent=1) + "\n")
        prefixes = [""]
    else:
        listed = [{"name": head.name, "kind": head.kind, "labels": head.labels} for head in heads]
        (folder / _HEADS).write_text(json.dumps(listed, indent=1) + "\n")
        prefixes = [f"{head.name}." for head in heads]
    tensors = dict[str, NDArray[np.float32]]()
    for prefix, head in zip(prefixes, heads, strict=True):
        tensors |= {f"{prefix}weight": head.weight, f"{prefix}bias": head.bias}
    safetensors.numpy.save_file(tensors, folder / _TENSORS)


def load_heads(folder: Path) -> tuple[Head, ...]:
    """The heads of a folder, in order. Raises: BadInput if it holds no valid heads."""
    try:
        tensors = safetensors.numpy.load_file(folder / _TENSORS)
        if (folder / _HEADS).exists():
            listed = json.loads((folder / _HEADS).read_text())
            heads = tuple(
                _head(tensors, f"{it['name']}.", it["labels"], it["name"], OutputKind(it["kind"])) for it in listed
            )
        else:
            heads = (_head(tensors, "", json.loads((folder / _LABELS).read_text())),)
        for head in heads:
            if not len(head.labels) == len(head.weight) == len(head.bias):
                problem = f"has {len(head.labels)} labels for {len(head.weight)} outputs; train it again"
                raise BadInput(str(folder), problem)
        Heads(tuple(head.spec for head in heads))
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise BadInput(str(folder), "its head is damaged; train it again") from error
    return heads


def _head(
    tensors: dict[str, NDArray[np.float32]],
    prefix: str,
    labels: Sequence[str],
    name: str = DEFAULT_HEAD,
    kind: OutputKind = OutputKind.SINGLE_LABEL,
) -> Head:
    return Head(tuple(labels), tensors[f"{prefix}weight"], tensors[f"{prefix}bias"], name, kind)
