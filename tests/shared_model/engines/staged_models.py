"""Tiny models of every family in one piece and in stages, as torch modules and as OpenVINO graphs."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared_model.building import checkpoint, convert
from shared_model.encoding import Encoder, Encoding, TokenBatch, collate
from shared_model.engine import Engine
from shared_model.engines.openvino_cpu import MappedModel, OpenVinoEngine, read_model
from shared_model.engines.openvino_pipeline import OpenVinoPipeline
from shared_model.engines.stages import Groups
from shared_model.engines.torch_engine import TorchEngine
from shared_model.engines.torch_pipeline import TorchPipeline
from shared_model.heads import Heads
from shared_model.types import Device, Precision
from tests.shared_model import tiny_models
from tests.shared_model.engines.split_models import TEXTS

KINDS = ("torch", "openvino")


@dataclass(frozen=True)
class StagedModel:
    """By kind: `whole` in one piece, `staged` in stages; and the encoded TEXTS."""

    heads: Heads
    whole: dict[str, Engine]
    staged: dict[str, Engine]
    encodings: list[Encoding]

    def deltas(self, kind: str, batches: Iterable[Sequence[int]]) -> list[float]:
        """Largest difference of a score from that of the model in one piece, of each batch of TEXTS, all in flight at
        once."""
        padded = [collate([self.encodings[row] for row in rows]) for rows in batches]
        with ThreadPoolExecutor(len(padded)) as threads:
            staged = list(threads.map(self.staged[kind].score, padded))
        return [self._delta(kind, raw, batch) for raw, batch in zip(staged, padded, strict=True)]

    def _delta(self, kind: str, raw: NDArray[np.float32], batch: TokenBatch) -> float:
        return float(np.abs(self.heads.scores(raw) - self.heads.scores(self.whole[kind].score(batch))).max())


def one_core_each(stages: int) -> Groups:
    """Cores of stages; on a smaller host they share."""
    cores = sorted(os.sched_getaffinity(0))
    return [[cores[stage % len(cores)]] for stage in range(stages)]


def staged_model(folder: Path, family: str, stages: int = 2) -> StagedModel:
    """In fp32; the graph has the weights of bulk work, as FP16."""
    loaded = checkpoint.load(tiny_models.make(folder, family))
    encoder = Encoder(loaded.files["tokenizer.json"], loaded.reads, release="")
    graph = read_model(convert.openvino_files(convert.to_openvino(loaded), half=True))
    groups = one_core_each(stages)
    whole = {"torch": TorchEngine(loaded.files, Precision.FP32, Device.CPU), "openvino": _graph_engine(graph)}
    staged = {
        "torch": TorchPipeline(loaded.files, Precision.FP32, groups),
        "openvino": OpenVinoPipeline(graph, Precision.FP32, groups, near=True),
    }
    return StagedModel(Heads.of(loaded.output), whole, staged, encoder.encode_many(TEXTS))


def _graph_engine(graph: MappedModel) -> OpenVinoEngine:
    return OpenVinoEngine(graph, Precision.FP32, threads=1)
