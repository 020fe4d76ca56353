"""One checkpoint → the files of every variant. The builder's half of Tandem: loads torch, openvino and nncf."""

import json
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import nncf
import openvino as ov
import safetensors.torch
import torch

from shared_model.encoding import Encoding, collate
from shared_model.engines.torch_encoder import SentenceClassifier, load_classifier
from shared_model.training import Head


def classifier_of(encoder_folder: Path, head: Head | None) -> SentenceClassifier:
    """The fp32 module of a Hugging Face encoder folder and a head; without one, a head of a single zero output."""
    return load_classifier(checkpoint_files(encoder_folder, head))


def checkpoint_files(encoder_folder: Path, head: Head | None) -> dict[str, bytes]:
    """`config.json` and `weights.safetensors` (fp32) as `load_classifier` and the CUDA engine read them."""
    config = json.loads((encoder_folder / "config.json").read_bytes())
    weights = safetensors.torch.load((encoder_folder / "model.safetensors").read_bytes())
    # The pooler belongs to BERT's pre-training and position ids are a constant buffer: neither is used.
    unused = {k for k in weights if k.startswith("pooler.") or k.endswith("position_ids")}
    kept = {f"encoder.{k}": v for k, v in weights.items() if k not in unused}
    if head:
        kept["head.weight"], kept["head.bias"] = torch.from_numpy(head.weight), torch.from_numpy(head.bias)
    else:
        kept["head.weight"], kept["head.bias"] = torch.zeros(1, config["hidden_size"]), torch.zeros(1)
    document = {"encoder": config, "labels": kept["head.bias"].shape[0]}
    return {
        "config.json": json.dumps(document, indent=1, sort_keys=True).encode(),
        "weights.safetensors": safetensors.torch.save(kept),
    }


def to_openvino(model: SentenceClassifier) -> ov.Model:
    """The fp32 graph with inputs (ids, mask), both int64 of any (rows, tokens)."""
    example = torch.ones(2, 8, dtype=torch.int64)
    with warnings.catch_warnings():
        # The tracer warns of branches on shapes that this encoder does not take; the gate proves the result.
        warnings.simplefilter("ignore")
        converted = ov.convert_model(model, example_input=(example, example), input=[([-1, -1], ov.Type.i64)] * 2)
    for port, name in zip(converted.inputs, ("ids", "mask"), strict=True):
        port.get_tensor().set_names({name})
    return converted


def quantise(model: ov.Model, calibration: Sequence[Encoding]) -> ov.Model:
    """INT8 post-training quantisation with NNCF's transformer preset, on one calibration text at a time."""
    batches = [collate([encoding]) for encoding in calibration]
    dataset = nncf.Dataset([{"ids": batch.ids, "mask": batch.mask} for batch in batches])
    return nncf.quantize(model, dataset, subset_size=len(batches), model_type=nncf.ModelType.TRANSFORMER)


def openvino_files(model: ov.Model) -> dict[str, bytes]:
    """`model.xml` and `model.bin`, weights at full precision."""
    with tempfile.TemporaryDirectory() as folder:
        ov.save_model(model, Path(folder) / "model.xml", compress_to_fp16=False)
        return {name: (Path(folder) / name).read_bytes() for name in ("model.xml", "model.bin")}
