"""A model whose engine sleeps: what is measured is all that surrounds a model."""

import os
import struct
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from batch_job.scoring import models, shard_task
from batch_job.scoring.models import Model
from batch_job.scoring.options import ScoringOptions
from batch_job.shards.shard_files import Target
from shared_model.batches import Batch, Batching, Finished, PackedBatch
from shared_model.types import Device, Precision

#: Of each token, padding included, in each slot.
SECONDS_PER_TOKEN = 5e-6
#: Names the folder where engines count the rows that they have run, a file for each process.
COUNTS = "SCALE_COUNTS"
_COUNT = struct.Struct("<q")

_score_shards = shard_task.score_shards


class SleepingEngine:
    """Computes nothing: a row's label follows from its tokens. `width`: of the release's output."""

    precision, device, width, streams = Precision.BF16, Device.CPU, 1, 1
    batching, hardware, ahead = Batching.BUCKETS, "sleeping", 0

    def __init__(self, width: int, counts: Path) -> None:
        self._width = width
        self._rows = 0
        self._counts = os.open(counts / str(os.getpid()), os.O_CREAT | os.O_WRONLY, 0o600)

    def start(self, batch: Batch) -> Finished:
        seconds = batch.size * SECONDS_PER_TOKEN
        time.sleep(seconds)
        self._rows += batch.rows
        # In one write, so that it can be read after the process was killed.
        os.pwrite(self._counts, _COUNT.pack(self._rows), 0)
        return Finished(self._raw(batch), seconds)

    def bulk_tokens(self) -> int:
        return 2048

    def close(self) -> None:
        os.close(self._counts)

    def _raw(self, batch: Batch) -> NDArray[np.float32]:
        if isinstance(batch, PackedBatch):
            raise TypeError("only padded batches were announced")
        raw = np.zeros((batch.rows, self._width), np.float32)
        raw[np.arange(batch.rows), (batch.ids * batch.mask).sum(axis=1) % self._width] = 5.0
        return raw


def rows_run(counts: Path) -> int:
    """Rows that all engines have run so far."""
    return sum(_COUNT.unpack(path.read_bytes())[0] for path in counts.iterdir() if path.stat().st_size)


def score_shards(
    lines: Iterator[pa.RecordBatch], options: ScoringOptions, target: Target, shard_rows: int
) -> Iterator[pa.RecordBatch]:
    """In an executor: as the nightly run's, with this engine."""
    vars(models)["_open"] = partial(_open, counts=Path(os.environ[COUNTS]))
    yield from _score_shards(lines, options, target, shard_rows)


def _open(options: ScoringOptions, threads: int, given: Sequence[int], counts: Path) -> Model:
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
    release = options.store().open(options.release)
    width = release.heads.width
    return Model(release.id, release.heads, release.encoder(), SleepingEngine(width, counts))  # type: ignore[arg-type]
