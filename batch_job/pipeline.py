"""One partition on one page: read → judge → score → check → commit."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from batch_job import reading, rows, table, writing
from batch_job.fence import WATCH_SECONDS, Fence, Watch
from batch_job.progress import Progress
from batch_job.record import RunRecord, Scoring
from batch_job.scoring import ScoringOptions
from batch_job.workers import slots_of
from batch_job.writing import FileReport, Target
from shared_model.devices import HALF_PRECISION
from shared_model.errors import JobError
from shared_model.settings import StateSettings


@dataclass(frozen=True)
class Tables:
    """Folders of the two tables."""

    scores: Path
    quarantine: Path

    @property
    def folders(self) -> tuple[Path, Path]:
        return self.scores, self.quarantine

    @classmethod
    def of(cls, state: StateSettings) -> "Tables":
        return cls(state.scores_table, state.state / "quarantine")


@dataclass
class Stopwatch:
    """Seconds per stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started


def plan_id(record: RunRecord, options: ScoringOptions) -> str:
    """Names everything that a partition's rows depend on: what has the same id need not be computed again."""
    release = options.store().open(record.release)
    parts = {
        "input": record.input.fingerprint,
        "release": record.release,
        "precision": HALF_PRECISION[options.device],
        "tokenizer": release.manifest.files["tokenizer.json"],
        "schema": rows.SCHEMA_VERSION,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def already_committed(tables: Tables, record: RunRecord, plan: str) -> Scoring | None:
    """What stands in the table, if this very plan produced it."""
    standing = table.committed(table.open_table(tables.scores, table.SCORES), record.ds)
    if standing is None or standing.plan_id != plan:
        return None
    return Scoring(
        token=standing.token,
        plan_id=plan,
        table_version=standing.table_version,
        rows=standing.rows,
        quarantined=table.quarantined(tables.quarantine, record.ds, standing.token),
    )


def score_partition(
    spark: SparkSession,
    record: RunRecord,
    options: ScoringOptions,
    tables: Tables,
    fence: Fence,
    task_rows: int,
    before_commit: Callable[[], None] = lambda: None,
) -> Scoring:
    """Score a partition and commit it. `before_commit` is called when all is computed and nothing is committed.

    Raises: Stale when a newer attempt owns the partition; JobError when the counts do not reconcile.
    """
    plan, watch = plan_id(record, options), Stopwatch()
    scores = Target(str(tables.scores), record.ds, plan, fence.token)
    set_aside = Target(str(tables.quarantine), record.ds, plan, fence.token)
    slots = slots_of(spark)
    tasks = slots * max(1, -(-record.input.lines // (slots * task_rows)))
    lines = reading.judged_lines(spark, record.input.paths, tasks).persist()
    try:
        with watch.stage("read"):
            reasons = _count_reasons(lines)
        with watch.stage("quarantine"):
            quarantine_files = _quarantine(lines, set_aside) if reasons else []
            quarantine_version = table.add_quarantined(tables.quarantine, record.ds, quarantine_files, fence.token)
        with watch.stage("score"), Progress(spark, _group(fence), record.input.lines, tasks):
            files = _score(lines, options, scores)
        _check(record, files, quarantine_files, reasons)
        before_commit()
        with watch.stage("commit"):
            metadata = _metadata(record, fence, quarantine_version)
            version = table.replace_partition(tables.scores, record.ds, files, fence.token, fence.check, metadata)
    finally:
        lines.unpersist()
        table.remove_litter(scores)
        table.remove_litter(set_aside)
    return _summary(scores, version, files, reasons, quarantine_version, watch)


@contextmanager
def supervised(spark: SparkSession, fence: Fence, seconds: float = WATCH_SECONDS) -> Iterator[None]:
    """Spark jobs started in here belong to the attempt, and are cancelled once it is superseded: then Stale."""
    context = spark.sparkContext
    context.setJobGroup(_group(fence), f"attempt {fence.token} at ds={fence.ds}", interruptOnCancel=True)
    try:
        with Watch(fence, lambda: context.cancelJobGroup(_group(fence)), seconds):
            yield
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)


def _group(fence: Fence) -> str:
    return f"tandem/{fence.ds}/{fence.token}"


def _count_reasons(lines: DataFrame) -> dict[str, int]:
    counted = lines.filter("reason is not null").groupBy("reason").agg(sql.count("*").alias("lines")).collect()
    return {row["reason"]: row["lines"] for row in sorted(counted)}


def _quarantine(lines: DataFrame, target: Target) -> list[FileReport]:
    write = partial(writing.write_quarantine, target=target)
    bad = lines.filter("reason is not null").select("file", "reason", "raw").coalesce(1)
    return [FileReport(**row.asDict()) for row in bad.mapInArrow(write, writing.REPORT_DDL).collect()]


def _score(lines: DataFrame, options: ScoringOptions, target: Target) -> list[FileReport]:
    write = partial(writing.write_scores, options=options, target=target)
    messages = lines.filter("reason is null").select("id", "raw")
    files = [FileReport(**row.asDict()) for row in messages.mapInArrow(write, writing.REPORT_DDL).collect()]
    if files:
        return files
    # A day on which nothing could be scored is a result too; without a file the table could not say whose.
    return [FileReport(*writing.write_file(target, rows.SCORES, []))]


def _check(record: RunRecord, files: list[FileReport], quarantined: list[FileReport], reasons: dict[str, int]) -> None:
    """Raises: JobError unless every planned line was written once, as a score or into quarantine."""
    written, set_aside = sum(file.rows for file in files), sum(file.rows for file in quarantined)
    if written + set_aside != record.input.lines or set_aside != sum(reasons.values()):
        raise JobError(
            f"ds={record.ds}: {record.input.lines} lines planned, {written} scored and {set_aside} quarantined; "
            "nothing committed: was the input changed while the run was reading it?"
        )
    precisions = {file.precision for file in files if file.rows}
    if len(precisions) > 1:
        raise JobError(f"ds={record.ds}: executors compiled {' and '.join(sorted(precisions))}; a partition has one")


def _metadata(record: RunRecord, fence: Fence, quarantine_version: int | None) -> dict[str, str]:
    return {
        "tandem.run": record.run_id,
        "tandem.release": record.release,
        "tandem.attempt": str(fence.token),
        "tandem.quarantine_version": "" if quarantine_version is None else str(quarantine_version),
    }


def _summary(
    target: Target,
    version: int,
    files: list[FileReport],
    reasons: dict[str, int],
    quarantine_version: int | None,
    watch: Stopwatch,
) -> Scoring:
    written, tokens = sum(file.rows for file in files), sum(file.tokens for file in files)
    padded = sum(file.padded_tokens for file in files)
    for stage in ("waited", "ran", "wrote"):
        watch.seconds[f"workers {stage}"] = sum(getattr(file, stage) for file in files)
    elapsed = sum(watch.seconds[stage] for stage in ("read", "quarantine", "score", "commit"))
    return Scoring(
        token=target.token,
        plan_id=target.plan_id,
        table_version=version,
        rows=written,
        quarantined=reasons,
        quarantine_version=quarantine_version,
        precision=files[0].precision,
        seconds={name: round(seconds, 3) for name, seconds in watch.seconds.items()},
        rows_per_second=round(written / elapsed, 1),
        tokens=tokens,
        padding_share=round(1 - tokens / padded, 4) if padded else 0.0,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
