"""A release's INT8 graph and tokeniser, called without Tandem: text in, best three labels out.

FOLDER holds `model.xml`, `model.bin`, `tokenizer.json` and `labels.json`.
"""

import json
from pathlib import Path

import numpy as np
import openvino as ov
from tokenizers import Tokenizer

#: The padded width of the benchmark's texts.
TOKENS = 16
TOP_K = 3


class Scorer:
    """One engine: `fixed`, compiled for single texts of `TOKENS` tokens on the calling thread, or for batches."""

    def __init__(self, folder: Path, fixed: bool = True, streams: int = 1) -> None:
        self._tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text())
        self._tokenizer.enable_padding(length=TOKENS)
        self._labels = json.loads((folder / "labels.json").read_text())
        core = ov.Core()
        model = core.read_model(folder / "model.xml")
        if fixed:
            model.reshape({port.any_name: [1, TOKENS] for port in model.inputs})
        properties = {"INFERENCE_NUM_THREADS": streams, "NUM_STREAMS": streams, "ENABLE_CPU_PINNING": False}
        self._compiled = core.compile_model(model, "CPU", properties | {"INFERENCE_PRECISION_HINT": "f32"})
        self._names = [port.any_name for port in self._compiled.inputs]
        self._request = self._compiled.create_infer_request()

    def score(self, texts: list[str]) -> list[list[tuple[str, float]]]:
        encoded = self._tokenizer.encode_batch_fast(texts)
        ids = np.array([each.ids for each in encoded], np.int64)
        mask = np.array([each.attention_mask for each in encoded], np.int64)
        arrays = {"ids": ids, "mask": mask, "types": np.zeros_like(ids)}
        inputs = {name: arrays[name] for name in self._names}
        # With several streams, calls come from several threads.
        request = self._request if len(texts) == 1 else self._compiled.create_infer_request()
        raw = np.array(request.infer(inputs, share_inputs=True)[0])[:, : len(self._labels)]
        odds = np.exp(raw - raw.max(axis=1, keepdims=True))
        scores = odds / odds.sum(axis=1, keepdims=True)
        best = np.argsort(-scores, axis=1)[:, :TOP_K]
        return [[(self._labels[i], float(row[i])) for i in found] for row, found in zip(scores, best, strict=True)]
