"""The application of these tests: the steps as they are, and one mishap, which NIGHT_MISHAP names. The folder
NIGHT_NOTES holds notes of events that happen once or are reported. Functions of a script reach executors by value."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast
from unittest import mock

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark import TaskContext

from batch_job import __main__ as steps
from batch_job import driver
from batch_job.progress import Progress
from batch_job.run_record import Findings
from batch_job.scoring import models, shard_task
from batch_job.scoring.options import ScoringOptions
from batch_job.shards import shard_files
from batch_job.shards.shard_files import Target
from batch_job.spark import task_context
from batch_job.steps import publish
from batch_job.steps import score as job
from batch_job.tables import resumable, table
from batch_job.tables.fence import Fence
from shared_model.batches import Batch, Running
from shared_model.engine import Engine
from shared_model.objects import Location, join, open_file, open_objects

_NOTES = Path(os.environ["NIGHT_NOTES"])
_COMMIT = table.replace_partition.__name__
#: How long one copy of a task, or one of two nights, waits for the other.
_MEETING_SECONDS = 120.0


def die(driver: int) -> NoReturn:
    """End the driver's JVM and Python at once, as when its host is lost. Python workers have a group of their own, and
    end when they notice."""
    os.killpg(driver, signal.SIGKILL)
    signal.pause()
    raise AssertionError("this process has survived")


def die_before(owner: Any, name: str) -> None:
    setattr(owner, name, lambda *_, **__: die(os.getpgrp()))


def die_after(owner: Any, name: str) -> None:
    real = getattr(owner, name)

    def step(*arguments: Any, **named: Any) -> NoReturn:
        real(*arguments, **named)
        die(os.getpgrp())

    setattr(owner, name, step)


def die_at_shard(count: int) -> None:
    """When so many shards are finished."""
    driver = os.getpgrp()

    def write(
        lines: Iterator[pa.RecordBatch], options: ScoringOptions, target: Target, shard_rows: int
    ) -> Iterator[pa.RecordBatch]:
        for report in shard_task.score_shards(lines, options, target, shard_rows):
            if sum(1 for _ in shard_files.sidecars(target)) >= count:
                die(driver)
            yield report

    shard_task.score_shards = write


def once(note: str) -> bool:
    """Whether this is the first call."""
    try:
        (_NOTES / note).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def meet(note: str) -> None:
    over = time.monotonic() + _MEETING_SECONDS
    while not (_NOTES / note).exists():
        if time.monotonic() > over:
            raise TimeoutError(note)
        time.sleep(0.01)


@dataclass
class Interrupted:
    """An engine that does something else first, once `armed`."""

    engine: Engine
    interrupt: Callable[[], None]
    armed: bool = field(default=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def start(self, batch: Batch) -> Running:
        if self.armed:
            self.interrupt()
        return self.engine.start(batch)


def write_interrupted(
    lines: Iterator[pa.RecordBatch],
    options: ScoringOptions,
    target: Target,
    shard_rows: int,
    interrupt: Callable[[], None],
    finished: Callable[[], None],
    armed: bool,
) -> Iterator[pa.RecordBatch]:
    """`interrupt` comes in the midst of each shard; of each but a task's first unless `armed`. `finished` comes when a
    shard is."""
    model = models.open_model(options, task_context.task_threads())
    engine = Interrupted(model.engine, interrupt, armed)
    with mock.patch.object(models, "open_model", return_value=replace(model, engine=cast(Engine, engine))):
        for report in shard_task.score_shards(lines, options, target, shard_rows):
            engine.armed = True
            finished()
            yield report


def kill_once(victim: Callable[[], psutil.Process]) -> None:
    if once("killed"):
        victim().kill()
        os.kill(os.getpid(), signal.SIGKILL)


def executor() -> psutil.Process:
    """The JVM that this Python worker computes for; between them is the process that forks workers."""
    java = psutil.Process().parents()[1]
    assert "CoarseGrainedExecutorBackend" in " ".join(java.cmdline())
    return java


def lose(victim: Callable[[], psutil.Process]) -> None:
    shard_task.score_shards = partial(
        write_interrupted, interrupt=partial(kill_once, victim), finished=lambda: None, armed=False
    )


def write_forgetfully(
    lines: Iterator[pa.RecordBatch], options: ScoringOptions, target: Target, shard_rows: int
) -> Iterator[pa.RecordBatch]:
    """One executor is lost, and its finished shards are not looked for."""
    task, kill = (lines, options, target, shard_rows), partial(kill_once, executor)
    with mock.patch.object(shard_task, "own_sidecars", return_value=[]):
        yield from write_interrupted(*task, kill, lambda: None, armed=False)


def forget() -> None:
    shard_task.score_shards = write_forgetfully


def write_slowly_at_first(
    lines: Iterator[pa.RecordBatch], options: ScoringOptions, target: Target, shard_rows: int, lossy: bool
) -> Iterator[pa.RecordBatch]:
    """One task is slow: in its first shard until its copy has written that, too; then until it is killed. `lossy`: the
    other loses its executor."""
    task, context = (lines, options, target, shard_rows), TaskContext.get()
    assert context is not None
    if context.partitionId() != 0:
        interrupt = partial(kill_once, executor) if lossy else lambda: None
        yield from write_interrupted(*task, interrupt, lambda: None, armed=False)
    elif once("slow"):
        yield from write_interrupted(*task, wait_for_the_copy, note_slow, armed=True)
    else:
        yield from write_interrupted(*task, lambda: None, let_the_slow_write, armed=True)


def wait_for_the_copy() -> None:
    meet("nobody comes" if (_NOTES / "slow wrote").exists() else "copy wrote")


def note_slow() -> None:
    (_NOTES / "slow wrote").touch()


def let_the_slow_write() -> None:
    (_NOTES / "copy wrote").touch()
    meet("slow wrote")


def copy(lossy: bool) -> None:
    shard_task.score_shards = partial(write_slowly_at_first, lossy=lossy)


def hold_before_commit(anyone: bool) -> None:
    """Until another night with these notes has computed the day, too. No fence is watched: that would end the older of
    them sooner. `anyone`: may commit then."""

    def held(*arguments: Any) -> Findings:
        found = examine(*arguments)
        if not once("one is held"):
            (_NOTES / "both are held").touch()
        meet("both are held")
        return found

    examine, job.examine = job.examine, held
    job.open_attempt = partial(job.open_attempt, watch_seconds=600.0)
    if anyone:
        Fence.check = lambda fence: None
        table.refuse_stale = lambda *_: None


def commit_in_two_steps() -> None:
    """As one would who first makes room for the new day."""

    def take_away(folder: Location, ds: str, *_: Any) -> NoReturn:
        DeltaTable(str(folder)).delete(f"ds = '{ds}'")
        die(os.getpgrp())

    setattr(table, _COMMIT, take_away)


def tell_files() -> None:
    """Note how many rows the files have that lie there when an attempt commits."""
    real = table.replace_partition

    def told(folder: Location, ds: str, *arguments: Any) -> int:
        found = open_objects(folder).list(f"ds={ds}/source=archive", deep=False)
        files = [join(folder, it.path) for it in found if it.path.endswith(".parquet")]
        (_NOTES / "files").write_text(json.dumps([pq.read_metadata(open_file(file)).num_rows for file in files]))
        return real(folder, ds, *arguments)

    setattr(table, _COMMIT, told)


MISHAPS: dict[str, Callable[[], None]] = {
    "planned": lambda: die_before(job, "open_attempt"),
    "judged": lambda: die_before(resumable, "adopt_finished"),
    "one shard": lambda: die_at_shard(1),
    "half the shards": lambda: die_at_shard(4),
    "all shards": lambda: die_after(Progress, "__exit__"),
    "quarantined": lambda: die_after(table, "add_quarantined"),
    "held before its commit": lambda: hold_before_commit(anyone=False),
    "held before its commit, which anyone may": lambda: hold_before_commit(anyone=True),
    "gated": lambda: die_after(job, "examine"),
    "checked": lambda: die_after(table, "refuse_stale"),
    "old taken away": commit_in_two_steps,
    "committed": lambda: die_after(table, _COMMIT),
    "published": lambda: die_after(publish, "publish_run"),
    "a worker is killed": lambda: lose(psutil.Process),
    "an executor is killed": lambda: lose(executor),
    "an executor is killed, and what it finished is forgotten": forget,
    "a task is copied": lambda: copy(lossy=False),
    "a task is copied, and an executor is killed": lambda: copy(lossy=True),
}

if __name__ == "__main__":
    tell_files()
    MISHAPS[os.environ["NIGHT_MISHAP"]]()
    sys.exit((steps.main if sys.argv[1] == "publish" else driver.main)(sys.argv[1:]))
