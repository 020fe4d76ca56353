"""What runs in a Spark executor: texts → scores, one engine per Python worker, the engine never waiting for text."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from batch_job.executors.prefetch import ahead
from batch_job.executors.running import HARMLESS, Ran, Runner
from numpy.typing import NDArray
from pyspark import TaskContext

from batch_job.executors import gpus, processes
from batch_job.settings import NightlySettings
from shared_model import devices
from shared_model.devices import HALF_PRECISION
from shared_model.encoding import Encoder, Encoding, Text
from shared_model.engine import Engine, use_gpu
from shared_model.evaluation import attestation
from shared_model.output import OutputSpec
from shared_model.releases import signature
from shared_model.releases.signature import TrustedKeys
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from shared_model.types import Device, Precision

#: Windows tokenised before the engine asks for them.
PREFETCH_DEPTH = 2

#: Seconds of calls that tell how many threads an engine uses; the last may end later.
_PROBE_SECONDS = 0.1
#: How often they are made at most: where others want the cores, one thread may do all the work before another gets one.
_PROBES = 8


@dataclass(frozen=True)
class ScoringOptions:
    """All that an executor needs to know. `releases_root` is a folder or a URL that every executor reaches;
    `trusted_keys` are the driver's, so that no file of keys need lie where executors run. `collapse`: texts of a window
    that are the same run once. `idle`: workers run at idle priority. `int8`: in INT8 where that is there, on CPU.
    `poison`: texts of a task that may fail by themselves."""

    releases_root: str
    release: str
    device: Device
    batch_rows: int
    batch_tokens: int
    trusted_keys: TrustedKeys | None = None
    collapse: bool = True
    idle: bool = False
    int8: bool = False
    poison: int = 0

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
            collapse=nightly.nightly_collapse,
            idle=nightly.nightly_idle,
            int8=nightly.nightly_int8,
            poison=nightly.nightly_poison,
        )

    @property
    def precision(self) -> Precision:
        """What is asked for; an engine may have to compile another."""
        return Precision.INT8 if self.int8 and self.device is Device.CPU else HALF_PRECISION[self.device]

    @property
    def compiled(self) -> tuple[Precision, ...]:
        """What engines may compile of it: a CPU without BF16 computes in FP32."""
        return (Precision.BF16, Precision.FP32) if self.precision is Precision.BF16 else (self.precision,)

    def store(self) -> Store:
        return Store(self.releases_root, self.trusted_keys)

    def proven(self) -> Release:
        """The release, whose variant may serve on this host. Raises: ReleaseError."""
        release = self.store().open(self.release)
        # Its lane has all cores, whatever Spark gives one of the tasks that run side by side.
        attestation.ensure(release, self.precision, self.device, devices.cores())
        return release


@dataclass(frozen=True)
class Model:
    """A release opened for scoring in this process. `threads`: how many a call was seen to use, 0 where the system does
    not tell. `device`: what it runs on, by name."""

    release: str
    output: OutputSpec
    encoder: Encoder
    engine: Engine
    threads: int = 0
    device: str = str(Device.CPU)


@dataclass(frozen=True)
class ScoredWindow:
    """One Arrow batch and its scores: row for row, but for the rows at `poisoned`, whose texts fail by themselves.
    `indices` and `scores`: (rows, what the output keeps of TOP_K). `batch_rows`: rows of the engine batch each ran in.

    `distinct`: rows that the engine ran for all of them; `tokens` and, with padding, `padded_tokens` of those.
    Seconds: `tokenised` in the thread that runs ahead, `waited` for the window to be read and tokenised, `ran` in the
    engine. `began`: Unix time at which the engine got the window.
    """

    batch: pa.RecordBatch
    poisoned: list[int]
    texts: list[Text]
    encodings: list[Encoding]
    indices: NDArray[np.int32]
    scores: NDArray[np.float32]
    batch_rows: NDArray[np.int32]
    distinct: int
    tokens: int
    padded_tokens: int
    tokenised: float
    waited: float
    ran: float
    began: float

    @property
    def source(self) -> pa.RecordBatch:
        """The rows of the batch that were scored."""
        if not self.poisoned:
            return self.batch
        return self.batch.take(np.delete(np.arange(self.batch.num_rows), self.poisoned))


@dataclass(frozen=True)
class _Window:
    """Texts as the engine gets them: `encodings[places[row]]` is that of `texts[row]`."""

    batch: pa.RecordBatch
    texts: list[Text]
    encodings: list[Encoding]
    places: NDArray[np.intp]
    tokenised: float


class _Key(NamedTuple):
    """What a model is opened for. `device` by name."""

    releases_root: str
    release: str
    device: str
    precision: Precision

    @classmethod
    def of(cls, options: ScoringOptions, gpu: int | None) -> "_Key":
        device = str(options.device) if gpu is None else f"{options.device}:{gpu}"
        return cls(options.releases_root, options.release, device, options.precision)


_opened: dict[_Key, Model] = {}
#: What opens ahead of the task that asks for it. None: that task is to open it.
_opening: dict[_Key, "Future[Model | None]"] = {}


def open_ahead(options: ScoringOptions, _: Iterator[object]) -> None:
    """Begin to open the worker's model while Spark has no texts for it yet. What comes of it, an error too, is for the
    task that asks for the model.

    Not on a GPU, which is given to a task and taken from it; and no variant that is to be proven yet: a proof judges
    latency, and Spark is busy now.
    """
    key, threads = _Key.of(options, None), task_threads()
    if options.device is Device.CUDA or key in _opened or key in _opening:
        return

    def open_judged() -> Model | None:
        release = options.store().open(options.release)
        return _open(options, threads, None) if attestation.judged(release, options.precision, options.device) else None

    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="open-ahead")
    _opening[key] = thread.submit(open_judged)
    thread.shutdown(wait=False)


def open_model(options: ScoringOptions, threads: int) -> Model:
    """The worker's model, on the GPU that Spark gave the task: compiled on first use, or ahead, and kept for the tasks
    that follow. One at a time."""
    gpu = gpus.given() if options.device is Device.CUDA else None
    key = _Key.of(options, gpu)
    if key not in _opened:
        for model in _opened.values():
            model.engine.close()
        _opened.clear()
        ahead = _opening.pop(key, None)
        model = (ahead.result() if ahead else None) or _open(options, threads, gpu)
        # Not ahead: another thread of the worker would be taken for one of the engine's.
        _opened[key] = replace(model, threads=_threads_used(model.engine), device=key.device)
    return _opened[key]


def _open(options: ScoringOptions, threads: int, gpu: int | None) -> Model:
    """The model, its engine compiled and called once, which builds what later calls use."""
    # The tokenizer's thread pool reads this when it starts: it must not take the cores of the other slots.
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
    if gpu is not None:
        use_gpu(gpu)
    release = options.proven()
    if options.idle:
        # After the proof, which judges latency: it must not wait for whoever shares the host.
        processes.yield_to_others()
    engine = release.engine(options.precision, options.device, threads)
    engine.score(HARMLESS)
    return Model(release.id, release.output, release.encoder(), engine)


def _threads_used(engine: Engine) -> int:
    """Threads that a call of the engine was seen to keep busy, 0 where the system does not tell."""
    most = 0
    for _ in range(_PROBES):
        before, end = processes.thread_seconds(), time.perf_counter() + _PROBE_SECONDS
        while time.perf_counter() < end:
            engine.score(HARMLESS)
        most = max(most, processes.busy(before, processes.thread_seconds()))
        if not before or most >= engine.width:
            break
    return most


def task_threads() -> int:
    """Cores Spark gave this task."""
    context = TaskContext.get()
    return context.cpus() if context else 1


def task_number() -> int:
    """This task's among those of its stage."""
    context = TaskContext.get()
    return context.partitionId() if context else 0


def score_windows(
    batches: Iterator[pa.RecordBatch],
    texts_of: Callable[[pa.RecordBatch], list[Text]],
    model: Model,
    options: ScoringOptions,
    most_poison: int = 0,
    scored: Callable[[int], None] = lambda rows: None,
) -> Iterator[ScoredWindow]:
    """Score every batch. Reading and tokenising run ahead in a thread while the engine works. `scored` is told how many
    rows of the batch are scored, after each batch of the engine.

    Raises: JobError where more than `most_poison` texts fail by themselves, or one does not fit the device's memory.
    """

    def tokenised() -> Iterator[_Window]:
        for batch in batches:
            texts = texts_of(batch)
            run, places = collapsed(texts) if options.collapse else (texts, np.arange(len(texts)))
            began = time.perf_counter()
            encodings = model.encoder.encode_many(run)
            yield _Window(batch, texts, encodings, places, tokenised=time.perf_counter() - began)

    runner = Runner(model.release, model.device, model.engine, model.output, most_poison)
    idle_since = time.perf_counter()
    for window in ahead(tokenised(), PREFETCH_DEPTH):
        started, began = time.perf_counter(), time.time()
        tokens = sum(encoding.tokens for encoding in window.encodings)
        told = partial(_rows_scored, scored, window.batch.num_rows, tokens)
        ran = runner.run(window.encodings, options.batch_rows, options.batch_tokens, told)
        ended = time.perf_counter()
        yield _scored(window, ran, waited=started - idle_since, ran_for=ended - started, began=began)
        idle_since = time.perf_counter()


def _rows_scored(scored: Callable[[int], None], rows: int, tokens: int, done: int) -> None:
    """Rows by the share of their tokens that is done: long texts run first, and a text may stand for several rows."""
    scored(rows * done // tokens)


def _scored(window: _Window, ran: Ran, waited: float, ran_for: float, began: float) -> ScoredWindow:
    poisoned = np.isin(window.places, ran.poisoned)
    rows = np.flatnonzero(~poisoned)
    places, run = window.places[rows], np.delete(np.arange(len(window.encodings)), ran.poisoned)
    return ScoredWindow(
        batch=window.batch,
        poisoned=np.flatnonzero(poisoned).tolist(),
        texts=[window.texts[row] for row in rows],
        encodings=[window.encodings[place] for place in places],
        indices=ran.indices[places],
        scores=ran.scores[places],
        batch_rows=ran.batch_rows[places],
        distinct=len(run),
        tokens=sum(window.encodings[place].tokens for place in run),
        padded_tokens=ran.padded_tokens,
        tokenised=window.tokenised,
        waited=waited,
        ran=ran_for,
        began=began,
    )


def collapsed(texts: Sequence[Text]) -> tuple[list[Text], NDArray[np.intp]]:
    """Each text once, in the order they first come, and where each row's text is among them."""
    places: dict[Text, int] = {}
    row_places = [places.setdefault(text, len(places)) for text in texts]
    return list(places), np.array(row_places, np.intp)
