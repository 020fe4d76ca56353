"""How full packed batches are, of the texts of a night."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from batch_job.scoring import windows
from batch_job.scoring.models import Model
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import NightlySettings
from shared_model.batches import LEAST_PACKED_TOKENS, MOST_PACKED_TOKENS, Batch, Batching, Finished
from shared_model.encoding import Encoder
from shared_model.heads import Heads
from shared_model.output import OutputKind, OutputSpec
from shared_model.types import Device, Precision

BUDGETS = (LEAST_PACKED_TOKENS, MOST_PACKED_TOKENS)
_OUTPUT = OutputSpec(OutputKind.SINGLE_LABEL, ("a", "b"), 2)


class _Measuring:
    """A packed engine that computes nothing."""

    precision, device, width, streams = Precision.FP16, Device.CUDA, 1, 1
    batching, hardware, ahead = Batching.PACKED, "none", 0

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def start(self, batch: Batch) -> Finished:
        self.sizes.append(batch.size)
        scores: NDArray[np.float32] = np.zeros((batch.rows, 2), np.float32)
        return Finished(scores, 0.0)


def fill(texts: Sequence[str], encoder: Encoder, budget: int) -> float:
    """Tokens per batch ÷ budget, in shards as a GPU's are, without each shard's last batch."""
    engine = _Measuring()
    model = Model("fill", Heads.of(_OUTPUT), encoder, engine, f"cuda:{budget}")  # type: ignore[arg-type]
    options = ScoringOptions("", "fill", Device.CUDA, batch_tokens=budget)
    sizes, before = list[int](), 0
    scored = windows.score_windows(_shards(texts), lambda it: it.column("text").to_pylist(), model, options)
    for _ in scored:
        sizes += engine.sizes[before:-1]
        before = len(engine.sizes)
    return float(np.mean(sizes)) / budget


def _shards(texts: Sequence[str]) -> Iterator[pa.RecordBatch]:
    rows = NightlySettings().shard_rows(Device.CUDA)
    for start in range(0, len(texts), rows):
        yield pa.record_batch({"text": texts[start : start + rows]})
