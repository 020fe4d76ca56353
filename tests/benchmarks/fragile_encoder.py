"""An encoder whose INT8 graph agrees with fp32 only if several of its layers stay in fp32: the worst case of a build.

It is the default encoder, but one hidden unit of some blocks is large on every text and read by nothing. The range of
INT8 is then spent on this unit, and smoothing cannot move it into weights that are 0. fp32 and BF16 do not notice.
"""

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from shared_model.building import build

#: Blocks with such a unit: more than a tenth of all linear layers read one, and less than a quarter.
BLOCKS = (0, 1, 2, 3, 4)
_UNIT, _SIZE = 0, 10_000.0

Tensors = dict[str, NDArray[np.float32]]


def write(folder: Path) -> Path:
    """Write the encoder into a new folder and return it."""
    shutil.copytree(build.default_encoder(), folder)
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    for block in BLOCKS:
        _spoil(tensors, f"encoder.layer.{block}")
    save_file(tensors, weights, {"format": "pt"})
    return folder


def _spoil(tensors: Tensors, block: str) -> None:
    tensors[f"{block}.intermediate.dense.weight"][_UNIT] = 0
    tensors[f"{block}.intermediate.dense.bias"][_UNIT] = _SIZE
    tensors[f"{block}.output.dense.weight"][:, _UNIT] = 0
