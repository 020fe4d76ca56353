"""Converts a checkpoint to the OpenVINO graph of all CPU variants. Loads torch and openvino: only building does."""

import importlib
import sys
import tempfile
import warnings
from pathlib import Path

import openvino as ov
import torch

from shared_model import CONVERTER
from shared_model.building.checkpoint import Checkpoint, quiet_transformers
from shared_model.encoding import TOKEN_STEP
from shared_model.engines.torch_model import load_module

# This process converts: see CONVERTER.
if sys.modules.get(CONVERTER) is None:
    sys.modules.pop(CONVERTER, None)
convert_model = importlib.import_module(CONVERTER).convert_model


def to_openvino(checkpoint: Checkpoint) -> ov.Model:
    """The fp32 graph with inputs ids, mask and, if the model reads them, types: int64 of any (rows, tokens)."""
    names = ("ids", "mask", "types") if checkpoint.reads.types else ("ids", "mask")
    example = torch.ones(2, 2 * TOKEN_STEP, dtype=torch.int64)
    with warnings.catch_warnings(), quiet_transformers():
        # The tracer warns of shape-dependent branches that a text encoder does not take; the gate checks the result.
        warnings.simplefilter("ignore")
        converted = convert_model(
            load_module(checkpoint.files),
            example_input=(example,) * len(names),
            input=[([-1, -1], ov.Type.i64)] * len(names),
        )
    for port, name in zip(converted.inputs, names, strict=True):
        port.get_tensor().set_names({name})
    return converted


def openvino_files(model: ov.Model, half: bool = False) -> dict[str, bytes]:
    """`model.xml` and `model.bin`. `half`: with floating-point weights as FP16, else as they are."""
    with tempfile.TemporaryDirectory() as folder:
        ov.save_model(model, Path(folder) / "model.xml", compress_to_fp16=half)
        return {name: (Path(folder) / name).read_bytes() for name in ("model.xml", "model.bin")}
