"""A release opened in a worker: compiled once, kept for the tasks that follow. Data frames are scored without Spark, so
this module loads it only where the driver calls it."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from batch_job.scoring.options import ScoringOptions
from batch_job.scoring.runner import HARMLESS
from batch_job.spark import gpus, priority
from batch_job.spark.task_context import task_threads
from shared_model.encoding import Encoder
from shared_model.engine import Engine, use_gpu
from shared_model.evaluation import attestation
from shared_model.heads import Heads
from shared_model.output import OutputSpec
from shared_model.types import Device, Precision

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Model:
    """A release opened for scoring in this process, on a device by name."""

    release: str
    heads: Heads
    encoder: Encoder
    engine: Engine
    device: str = str(Device.CPU)

    @property
    def output(self) -> OutputSpec:
        """That of the first head."""
        return self.heads.first.output


class _Key(NamedTuple):
    """The key of an opened model. `device` by name."""

    releases_root: str
    release: str
    device: str
    precision: Precision

    @classmethod
    def for_options(cls, options: ScoringOptions, numbers: Sequence[int]) -> "_Key":
        device = f"{options.device}:{','.join(map(str, numbers))}" if numbers else str(options.device)
        return cls(options.releases_root, options.release, device, options.precision)


_opened: dict[_Key, Model] = {}
#: Models that open ahead of the task that asks for them. A result of None: the task opens the model itself.
_opening: dict[_Key, "Future[Model | None]"] = {}


def open_ahead(options: ScoringOptions, _: Iterator[object]) -> None:
    """Begin to open the worker's model while the driver plans. The task that asks for the model gets the result, or the
    error.

    Not on a GPU, which is given to a task and taken from it; nor a variant without an attestation: its canary check
    measures latency, and Spark is busy now.
    """
    key, threads = _Key.for_options(options, ()), task_threads()
    if options.device is Device.CUDA or key in _opened or key in _opening:
        return

    def open_judged() -> Model | None:
        release = options.store().open(options.release)
        return (
            _open(options, threads, ()) if attestation.has_verdict(release, options.precision, options.device) else None
        )

    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="open-ahead")
    _opening[key] = thread.submit(open_judged)
    thread.shutdown(wait=False)


def open_model(options: ScoringOptions, threads: int) -> Model:
    """The worker's model, on the GPUs that Spark gave the task: compiled on first use, or ahead, and kept for the tasks
    that follow. One at a time."""
    given = gpus.given() if options.device is Device.CUDA else ()
    key = _Key.for_options(options, given)
    if key not in _opened:
        for model in _opened.values():
            model.engine.close()
        _opened.clear()
        ahead = _opening.pop(key, None)
        model = (ahead.result() if ahead else None) or _open(options, threads, given)
        _opened[key] = replace(model, device=key.device)
    return _opened[key]


def _open(options: ScoringOptions, threads: int, given: Sequence[int]) -> Model:
    """The model, its engine compiled and called once, which builds what later calls use."""
    # The tokenizer's thread pool reads this when it starts: it must not take the cores of the other slots.
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
    spread = options.spread(given)
    if given:
        use_gpu(given[0])
    release = options.proven(spread)
    if options.idle:
        # After the canary check: it measures latency.
        priority.yield_to_others()
    engine = release.engine(options.precision, options.device, threads, 1, spread)
    engine.score(HARMLESS)
    return Model(release.id, release.heads, release.encoder(), engine)


def open_on_workers(spark: "SparkSession", options: ScoringOptions) -> None:
    """Have every worker begin to open the model that it will score with, and do not wait for it. Raises: JobError where
    a worker is killed meanwhile."""
    from batch_job.spark.failures import failing_in_one_line
    from batch_job.spark.session import slots_of

    slots = slots_of(spark)
    with failing_in_one_line():
        spark.sparkContext.parallelize(range(slots), slots).foreachPartition(partial(open_ahead, options))
