"""python -m tests.benchmarks.nightly.sentences: sentence-transformers' own `encode`, with all cores."""

import time
from collections.abc import Sequence

import torch
from sentence_transformers import SentenceTransformer

from shared_model import devices
from shared_model.building import build
from tests.load import child

BATCH_ROWS = 64


class Sentences:
    """Answers the benchmark's questions."""

    def __init__(self) -> None:
        torch.set_num_threads(devices.cores())
        self._models: dict[str, SentenceTransformer] = {}

    def ask(self, texts: Sequence[str], dtype: str) -> dict[str, float]:
        """rows/s from texts to embeddings; `dtype` as torch names it."""
        model = self._model(dtype)
        started = time.perf_counter()
        model.encode(list(texts), batch_size=BATCH_ROWS, show_progress_bar=False)
        return {"rows_per_second": len(texts) / (time.perf_counter() - started)}

    def _model(self, dtype: str) -> SentenceTransformer:
        if dtype not in self._models:
            self._models[dtype] = SentenceTransformer(
                str(build.default_encoder()), device=devices.detect().value, model_kwargs={"dtype": dtype}
            )
        return self._models[dtype]


if __name__ == "__main__":
    child.answer({}, Sentences().ask)
