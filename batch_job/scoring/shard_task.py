"""The task that scores a day: shard by shard, each written as a file with its sidecar."""

import os
import time
from collections import deque
from collections.abc import Iterator

import pyarrow as pa

from batch_job.scoring import models, rows, windows
from batch_job.scoring.models import Model
from batch_job.scoring.options import ScoringOptions
from batch_job.scoring.windows import ScoredWindow
from batch_job.shards import binning, schemas, tally
from batch_job.shards.binning import Shard
from batch_job.shards.shard_files import (
    FileReport,
    Target,
    as_batch,
    chain,
    finished,
    own_sidecars,
    shard_name,
    shard_of,
    write_file,
    write_sidecar,
)
from batch_job.shards.tally import Tally
from batch_job.spark import task_context


def score_shards(
    lines: Iterator[pa.RecordBatch], options: ScoringOptions, target: Target, shard_rows: int
) -> Iterator[pa.RecordBatch]:
    """mapInArrow: score one task's rows shard by shard; write each as a file and then its sidecar, and report it. Of a
    task that is run again, what it had finished is reported as it stands."""
    first = next(lines, None)
    if first is None:
        return
    model = models.open_model(options, task_context.task_threads())
    taken, names = deque[Shard](), list[str]()
    counted = Tally(target, f"{tally.TASK}{task_context.task_number()}")
    # Of this very attempt: a copy of this task was lost with its executor, or runs beside it. No other task looks: the
    # folder holds every shard of the day.
    own = [] if counted.begin() else own_sidecars(target)
    notes, done = {shard_of(note): note for note in own}, list[FileReport]()

    def fresh() -> Iterator[pa.RecordBatch]:
        for shard in binning.cut(chain(first, lines), shard_rows):
            name = shard_name(shard.bin_number, shard.part)
            note = notes.get(name)
            report = finished(note, target) if note else None
            if report and report.judged == shard.rows.num_rows:
                done.append(report)
                counted.count(name, report.judged)
                continue
            taken.append(shard)
            names.append(name)
            yield rows.unscored(shard.rows, model.engine.precision)

    def scored(number: int, count: int) -> None:
        # Not the first one taken: a GPU may be ahead of the shard that is being written.
        counted.count(names[number], count)

    for window in windows.score_windows(fresh(), rows.texts, model, options, options.poison, scored):
        shard = taken.popleft()
        report = write_shard(shard, window, model, target)
        counted.count(shard_name(shard.bin_number, shard.part), report.judged)
        yield as_batch(report)
    counted.write()
    yield from map(as_batch, done)


def write_shard(shard: Shard, window: ScoredWindow, model: Model, target: Target) -> FileReport:
    """Write what the engine made of a shard, and what was scored before."""
    started = time.perf_counter()
    reused = rows.reused_rows(shard.rows, model.release, model.engine.precision)
    batches = [rows.score_rows(window, model), reused]
    written = write_file(target, schemas.SCORES, batches, shard_name(shard.bin_number, shard.part))
    report = FileReport(
        *written,
        fingerprint=target.fingerprint,
        bin_number=shard.bin_number,
        part=shard.part,
        content=schemas.add_contents(map(schemas.content, batches)),
        poisoned=tuple(window.batch.column("id").take(pa.array(window.poisoned, pa.int64())).to_pylist()),
        reused=reused.num_rows,
        distinct=window.distinct,
        tokens=window.tokens,
        padded_tokens=window.padded_tokens,
        precision=model.engine.precision,
        pid=os.getpid(),
        began=window.began,
        ended=time.time(),
        tokenised=window.tokenised,
        waited=window.waited,
        ran=window.ran,
        device_busy=window.device_busy,
        wrote=time.perf_counter() - started,
    )
    write_sidecar(target, report)
    return report
