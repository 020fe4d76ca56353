"""A release of a few kilobytes with the files and variants of a real one, whose weights compute nothing."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared_model.encoding import InputSpec
from shared_model.evaluation import report
from shared_model.output import OutputKind, OutputSpec
from shared_model.releases import verdict_signature
from shared_model.releases.manifest import Facts, Variant
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from shared_model.trust import keyring
from shared_model.types import Device, Precision

_random = random.Random(3)
_TOKENIZER = {"model": {"type": "WordPiece", "vocab": {f"word{number}": number for number in range(99)}}}

FILES: Mapping[str, bytes] = {
    "config.json": b'{"hidden_size": 384, "labels": 2}',
    "int8/model.bin": _random.randbytes(2048),
    "int8/model.xml": b'<?xml version="1.0"?><net name="int8"><layers/></net>',
    "openvino/model.bin": _random.randbytes(2048),
    "openvino/model.xml": b'<?xml version="1.0"?><net name="fp32"><layers/></net>',
    "tokenizer.json": json.dumps(_TOKENIZER).encode(),
    "weights.safetensors": _random.randbytes(4096),
}


def _graph(folder: str) -> dict[str, str]:
    return {name: f"{folder}/{name}" for name in ("model.bin", "model.xml")}


VARIANTS = (
    Variant(Precision.FP32, Device.CPU, _graph("openvino")),
    Variant(Precision.BF16, Device.CPU, _graph("openvino")),
    Variant(Precision.INT8, Device.CPU, _graph("int8")),
    Variant(Precision.FP16, Device.CUDA, {name: name for name in ("config.json", "weights.safetensors")}),
)

FACTS: Mapping[str, Any] = {
    "name": "small",
    "parent": "0" * 64,
    "output": OutputSpec(OutputKind.SINGLE_LABEL, ("yes", "no"), 2),
    "reads": InputSpec(8),
    "calibration": "1" * 64,
    "quantisation": "by hand",
    "variants": VARIANTS,
}


def seal(store: Store, files: Mapping[str, bytes] = FILES, **changes: Any) -> Release:
    """Write it; `changes` to its facts make another release."""
    return store.seal(files, Facts(**{**FACTS, **changes}))


def judge(release: Release, failures: tuple[str, ...] = (), **measured: Any) -> None:
    """Write the report of a gate that found `failures` in the INT8 variant; `measured` are more facts of each."""
    known = {"agreement": 0.995, "clear_agreement": None, "accuracy": None, "latency": [], **measured}
    variants = [
        {
            "precision": precision,
            "device": "cpu",
            "compiled": precision,
            "failures": list(broken),
            "passed": not broken,
            **known,
        }
        for precision, broken in (("fp32", ()), ("bf16", ()), ("int8", failures))
    ]
    document = {"release": release.id, "passed": not failures, "unproven": ["fp16/cuda"], "variants": variants}
    release.write_note(report.JSON, json.dumps(document).encode())


def sign_verdict(release: Release, state: Path) -> None:
    """By the operator of a state folder, whose keys are made."""
    keys = keyring.load(StateSettings(state=state))
    verdict_signature.sign(release, keys.operator, "operator.key")


def passed(store: Store, name: str) -> Release:
    """One that may be promoted."""
    release = seal(store, name=name)
    judge(release)
    return release
