"""python -m tests.benchmarks.nightly.bare RELEASES ID: the nightly run's engine with nothing around it.

One process with all cores: texts are tokenised, sorted, cut and run, as one window. Nothing is read, nothing written.
"""

import json
import sys
import time
from collections.abc import Sequence

from batch_job.scoring import batching
from batch_job.settings import NightlySettings
from shared_model import devices
from shared_model.devices import HALF_PRECISION
from shared_model.engine import Engine
from shared_model.releases.store import Release, Store
from shared_model.types import Device, Precision
from tests.benchmarks.nightly import flops
from tests.load import child


class Bare:
    """Answers the benchmark's questions."""

    def __init__(self, release: Release) -> None:
        self._release = release
        self._config = json.loads(release.read("config.json"))["model"]
        self._encoder = release.encoder()
        self._engines: dict[Precision, Engine] = {}

    def ask(self, texts: Sequence[str], int8: bool = False) -> dict[str, float]:
        """rows/s from texts to scores, and the arithmetic that a row is of."""
        engine = self._engine(int8)
        started = time.perf_counter()
        encodings = self._encoder.encode_many(list(texts))
        settings = NightlySettings()
        lengths = [encoding.tokens for encoding in encodings]
        limits = settings.nightly_batch_rows, settings.nightly_batch_tokens
        cutting = batching.cutting(engine, (self._release.id, "bare"), *limits, state="")
        for rows in cutting.plan(lengths, last=True):
            self._release.heads.scores(engine.start(cutting.batch([encodings[row] for row in rows])).result())
        seconds = time.perf_counter() - started
        work = flops.of_texts(self._config, lengths)
        return {"rows_per_second": len(texts) / seconds, "flops_per_row": work / len(texts)}

    def _engine(self, int8: bool) -> Engine:
        device = Device.CPU if int8 else devices.detect()
        precision = Precision.INT8 if int8 else HALF_PRECISION[device]
        if precision not in self._engines:
            self._engines[precision] = self._release.engine(precision, device, devices.cores())
        return self._engines[precision]


def gpu_name() -> str:
    """Of the GPU that engines run on here; empty without one."""
    if devices.detect() is not Device.CUDA:
        return ""
    import torch

    return torch.cuda.get_device_name()


def main(releases: str, release_id: str) -> None:
    child.answer({"gpu": gpu_name()}, Bare(Store(releases).open(release_id)).ask)


if __name__ == "__main__":
    main(*sys.argv[1:])
