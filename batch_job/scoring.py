"""What runs in a Spark executor: texts → scores, one engine per Python worker, the engine never waiting for text."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext

from batch_job.prefetch import ahead
from batch_job.settings import NightlySettings
from shared_model import devices
from shared_model.devices import HALF_PRECISION
from shared_model.encoding import Encoder, Encoding, Text, collate, padded, plan_batches
from shared_model.engine import Engine
from shared_model.errors import JobError
from shared_model.output import Output
from shared_model.releases import proof, signature
from shared_model.releases.signature import TrustedKeys
from shared_model.releases.store import Store
from shared_model.settings import StateSettings
from shared_model.types import TOP_K, Device

#: Windows tokenised before the engine asks for them.
PREFETCH_DEPTH = 2


@dataclass(frozen=True)
class ScoringOptions:
    """All that an executor needs to know. `releases_root` is a folder or a URL that every executor reaches;
    `trusted_keys` are the driver's, so that no file of keys need lie where executors run."""

    releases_root: str
    release: str
    device: Device
    batch_rows: int
    batch_tokens: int
    trusted_keys: TrustedKeys | None = None

    @classmethod
    def of(cls, state: StateSettings, nightly: NightlySettings, release: str, device: Device) -> "ScoringOptions":
        """Raises: SettingError where the file of trusted keys is wrong."""
        return cls(
            releases_root=state.releases_root,
            release=release,
            device=device,
            batch_rows=nightly.nightly_batch_rows,
            batch_tokens=nightly.nightly_batch_tokens,
            trusted_keys=signature.trusted_keys(state),
        )

    def store(self) -> Store:
        return Store(self.releases_root, self.trusted_keys)


@dataclass(frozen=True)
class Model:
    """A release opened for scoring in this process."""

    release: str
    output: Output
    encoder: Encoder
    engine: Engine


@dataclass(frozen=True)
class ScoredWindow:
    """One Arrow batch and its scores, row for row. `indices` and `scores`: (rows, what the output keeps of TOP_K).
    `batch_rows`: rows of the engine batch each row ran in.

    Seconds: `waited` for the window to be read and tokenised, `ran` in the engine.
    """

    source: pa.RecordBatch
    texts: list[Text]
    encodings: list[Encoding]
    indices: NDArray[np.int32]
    scores: NDArray[np.float32]
    batch_rows: NDArray[np.int32]
    padded_tokens: int
    waited: float
    ran: float

    @property
    def tokens(self) -> int:
        return sum(encoding.tokens for encoding in self.encodings)


_opened: dict[tuple[str, str, Device], Model] = {}


def open_model(options: ScoringOptions, threads: int) -> Model:
    """The worker's model, compiled on first use and kept for the tasks that follow. One at a time."""
    key = (options.releases_root, options.release, options.device)
    if key not in _opened:
        for model in _opened.values():
            model.engine.close()
        _opened.clear()
        # The tokenizer's thread pool reads this when it starts: it must not take the cores of the other slots.
        os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
        release = options.store().open(options.release)
        # Its lane has all cores, whatever Spark gives one of the tasks that run side by side.
        proof.ensure(release, HALF_PRECISION[options.device], options.device, devices.cores())
        engine = release.half_precision_engine(options.device, threads)
        _opened[key] = Model(release.id, release.output, release.encoder(), engine)
    return _opened[key]


def task_threads() -> int:
    """Cores Spark gave this task."""
    context = TaskContext.get()
    return context.cpus() if context else 1


def score_windows(
    batches: Iterator[pa.RecordBatch],
    texts_of: Callable[[pa.RecordBatch], list[Text]],
    model: Model,
    options: ScoringOptions,
) -> Iterator[ScoredWindow]:
    """Score every batch. Reading and tokenising run ahead in a thread while the engine works."""

    def tokenised() -> Iterator[tuple[pa.RecordBatch, list[Text], list[Encoding]]]:
        for batch in batches:
            texts = texts_of(batch)
            yield batch, texts, model.encoder.encode_many(texts)

    idle_since = time.perf_counter()
    for batch, texts, encodings in ahead(tokenised(), PREFETCH_DEPTH):
        started = time.perf_counter()
        answers = _run(model, encodings, options)
        ran = time.perf_counter() - started
        yield ScoredWindow(batch, texts, encodings, *answers, waited=started - idle_since, ran=ran)
        idle_since = time.perf_counter()


def _run(
    model: Model, encodings: list[Encoding], options: ScoringOptions
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32], int]:
    """Indices, scores and batch rows in the order of `encodings`; tokens run, padding included."""
    width = model.output.kept(TOP_K)
    indices = np.empty((len(encodings), width), np.int32)
    best = np.empty((len(encodings), width), np.float32)
    batch_rows = np.empty(len(encodings), np.int32)
    padded_tokens = 0
    lengths = [encoding.tokens for encoding in encodings]
    for rows in plan_batches(lengths, options.batch_rows, options.batch_tokens):
        scores = model.output.scores(model.engine.score(collate([encodings[row] for row in rows])))
        if not np.isfinite(scores).all():
            raise JobError(f"release {model.release} gave a score that is no number; nothing was committed")
        indices[rows], best[rows] = model.output.best(scores, width)
        batch_rows[rows] = len(rows)
        padded_tokens += padded(lengths[rows[0]]) * len(rows)
    return indices, best, batch_rows, padded_tokens
