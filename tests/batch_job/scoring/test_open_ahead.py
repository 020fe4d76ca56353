"""A worker opens its model while Spark has no texts for it yet, and the task that scores gets that one."""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from batch_job.scoring import models
from batch_job.scoring.options import ScoringOptions
from batch_job.spark import session
from shared_model.engine import Engine
from shared_model.errors import ReleaseError
from shared_model.releases.store import Release
from shared_model.types import Device

#: No texts: it is not asked for any.
NOTHING: list[object] = []


@pytest.fixture(autouse=True)
def own_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(models, "_opened", {})
    monkeypatch.setattr(models, "_opening", {})
    yield
    for model in models._opened.values():
        model.engine.close()


def test_the_task_gets_the_engine_that_was_compiled_ahead(
    options: ScoringOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[tuple[str, Engine]] = []
    compile_engine = Release.engine

    def engine(self: Release, *asked: Any) -> Engine:
        compiled.append((threading.current_thread().name, compile_engine(self, *asked)))
        return compiled[-1][1]

    monkeypatch.setattr(Release, "engine", engine)
    for _ in range(2):
        models.open_ahead(options, iter(NOTHING))
    model = models.open_model(options, threads=1)
    assert models.open_model(options, threads=1) is model
    models.open_ahead(options, iter(NOTHING))
    ((thread, engine_of_it),) = compiled
    assert thread.startswith("open-ahead")
    assert model.engine is engine_of_it
    # Measured without the thread that opened it.
    assert model.engine.width == 1


def test_what_fails_ahead_is_told_to_the_task_that_asks_and_the_next_one_tries_again(
    options: ScoringOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Engine:
        raise ReleaseError("no room to compile it")

    with monkeypatch.context() as patch:
        patch.setattr(Release, "engine", broken)
        models.open_ahead(options, iter(NOTHING))
        (ahead,) = models._opening.values()
        ahead.exception()
    with pytest.raises(ReleaseError, match="no room to compile it"):
        models.open_model(options, threads=1)
    assert models.open_model(options, threads=1).release == options.release


def test_a_gpu_is_never_taken_ahead_of_the_task_that_is_given_it(options: ScoringOptions) -> None:
    models.open_ahead(replace(options, device=Device.CUDA), iter(NOTHING))
    assert models._opening == {}


def test_the_workers_that_open_ahead_are_those_that_score(spark: SparkSession, options: ScoringOptions) -> None:
    key = models._Key.for_options(options, None)

    def seen(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()], "here": [key in {*models._opening, *models._opened}]})

    slots = session.slots_of(spark)
    models.open_on_workers(spark, options)
    tasks = spark.range(slots, numPartitions=slots).mapInArrow(seen, "pid long, here boolean").collect()
    assert len({task.pid for task in tasks}) == slots == 2
    assert all(task.here for task in tasks)
