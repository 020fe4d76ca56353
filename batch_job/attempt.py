"""One partition on one page: read → judge → cut into units → score units → quarantine → check → commit."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from batch_job.checks import gate
from batch_job.checks.examination import Written
from batch_job.checks.gate import GateFailed
from batch_job.identity import Tables
from batch_job.inputs import reading
from batch_job.inputs.messages import Reason
from batch_job.progress import Progress, say
from batch_job.run_record import Findings, QuarantinedLine, RunRecord, Scoring
from batch_job.scoring import rows, shard_task
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import NightlySettings
from batch_job.shards import binning, quarantining, schemas, shard_files, summary, tally
from batch_job.shards.binning import Bucket, Load
from batch_job.shards.shard_files import FileReport, Target
from batch_job.spark import failures, gpus, session
from batch_job.tables import quarantined, resumable, table
from batch_job.tables.fence import WATCH_SECONDS, Fence, Watch
from shared_model.errors import JobError


@dataclass
class Stopwatch:
    """Seconds per stage, all its parts together."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


@dataclass(frozen=True)
class _Attempt:
    """What the steps of one attempt share."""

    spark: SparkSession
    record: RunRecord
    options: ScoringOptions
    settings: NightlySettings
    scores: Target
    set_aside: Target

    @property
    def lines(self) -> int:
        return self.record.input.lines

    @property
    def bits(self) -> int:
        return binning.cell_bits(self.lines, self.settings.nightly_unit_rows)

    def tasks(self, lines: int) -> int:
        return session.tasks_for(self.spark, lines, self.settings.nightly_task_rows)

    def too_many(self, reasons: Mapping[str, int]) -> bool:
        """Whether so many lines are quarantined that no score may be committed."""
        return sum(reasons.values()) > self.settings.quarantine_share * self.lines


def plan_id(record: RunRecord, options: ScoringOptions, unit_rows: int) -> str:
    """Names everything that a partition's rows depend on: what has the same id need not be computed again."""
    release = options.store().open(record.release)
    parts = {
        "input": record.input.fingerprint,
        "release": record.release,
        "precision": options.precision,
        "encoder": release.manifest.files["tokenizer.json"],
        "unit_rows": unit_rows,
        "units": binning.RULE,
        "schema": schemas.SCHEMA_VERSION,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def already_committed(tables: Tables, record: RunRecord, plan: str) -> Scoring | None:
    """What stands in the table, if this very plan produced it. Raises: JobError when it is of another input."""
    delta = table.open_table(tables.scores, table.SCORES)
    table.refuse_other_input(delta, record.ds, record.input.identity)
    standing = table.committed(delta, record.ds)
    if standing is None or standing.plan_id != plan:
        return None
    facts = table.commit_facts(delta, record.ds, standing.token)
    version = facts.get("tandem.quarantine_version")
    return Scoring(
        token=standing.token,
        plan_id=plan,
        table_version=standing.table_version,
        rows=standing.rows,
        quarantined=table.quarantined(tables.quarantine, record.ds, standing.token),
        quarantine_version=int(version) if version else None,
        content=facts.get("tandem.content", ""),
    )


@failures.failing_in_one_line()
def score_partition(
    spark: SparkSession,
    record: RunRecord,
    options: ScoringOptions,
    tables: Tables,
    fence: Fence,
    settings: NightlySettings,
    force: bool = False,
    before_commit: Callable[[Written], Mapping[str, str]] = lambda written: {},
) -> Scoring:
    """Score a partition and commit it. `before_commit` is called when all is computed and no score is committed: the
    commit says what it returns, and there is none if it raises.

    With `force` all is computed anew, whatever earlier attempts have left or committed.
    Raises: Stale when a newer attempt owns the partition; GateFailed when too much of it is quarantined; JobError when
    the counts do not reconcile, or a worker could not do its part.
    """
    plan, watch = plan_id(record, options, settings.nightly_unit_rows), Stopwatch()
    scores = Target(str(tables.scores), record.ds, plan, fence.token)
    set_aside = Target(str(tables.quarantine), record.ds, plan, fence.token, source="")
    tasks = session.tasks_for(spark, record.input.lines, settings.nightly_task_rows)
    attempt = _Attempt(session.planned_once(spark, tasks), record, options, settings, scores, set_aside)
    with watch.stage("read"):
        lines = binning.hashed(reading.judged_lines(attempt.spark, record.input, tasks)).persist()
    try:
        say(f"ds={record.ds}: reading {record.input.lines:,} lines of {len(record.input.files):,} files")
        with watch.stage("read"):
            reasons, buckets = _count(attempt, lines)
        with watch.stage("resume"):
            taken = [] if force else _take_over(attempt, buckets)
            standing = None if force else _standing(attempt)
        with watch.stage("score"):
            # A day that is too damaged is not worth a night.
            left = [] if attempt.too_many(reasons) else _left(buckets, taken)
            fresh = _score(attempt, lines, left, standing)
        files = [*taken, *fresh]
        with watch.stage("quarantine"):
            reasons, quarantine_version, shown = _quarantine(attempt, lines, reasons, files)
        _check(attempt, files, reasons)
        files = files or [_empty(attempt)]
        with watch.stage("gate"):
            said = before_commit(Written(scores, files, reasons, lines.filter("reason is null"), shown))
        say(f"ds={record.ds}: committing {len(files):,} files of {sum(file.rows for file in files):,} rows")
        with watch.stage("commit"):
            facts = {**_facts(attempt, files, quarantine_version), **said}
            version = table.replace_partition(tables.scores, record.ds, files, fence.token, fence.check, facts)
        for target in (scores, set_aside):
            resumable.sweep(target, time.time())
    finally:
        lines.unpersist()
        for target in (scores, set_aside):
            resumable.remove_temporary(target)
    slots = session.scoring_slots(spark)
    return summary.scoring(scores, version, files, reasons, quarantine_version, watch.seconds, slots)


@contextmanager
def supervised(spark: SparkSession, fence: Fence, seconds: float = WATCH_SECONDS) -> Iterator[None]:
    """Spark jobs started in here belong to the attempt, and are cancelled once it is superseded: then Stale."""
    context = spark.sparkContext
    context.setJobGroup(
        _group(fence.ds, fence.token), f"attempt {fence.token} at ds={fence.ds}", interruptOnCancel=True
    )
    try:
        with Watch(fence, lambda: context.cancelJobGroup(_group(fence.ds, fence.token)), seconds):
            yield
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)


def _group(ds: str, token: int) -> str:
    return f"tandem/{ds}/{token}"


def _count(attempt: _Attempt, lines: DataFrame) -> tuple[dict[str, int], list[Bucket]]:
    """Reason → lines quarantined, and the buckets of all others."""
    cell = sql.expr(f"case when reason is null then {binning.cell(attempt.bits)} end as cell")
    load = sql.expr("count(*) as lines"), sql.expr(f"sum({binning.WORK}) as work")
    counted = lines.groupBy("reason", cell).agg(*load).toArrow().to_pylist()
    reasons = {each["reason"]: each["lines"] for each in counted if each["reason"] is not None}
    cells = {each["cell"]: Load(each["lines"], each["work"]) for each in counted if each["reason"] is None}
    return dict(sorted(reasons.items())), binning.pack(cells, attempt.settings.nightly_unit_rows)


def _take_over(attempt: _Attempt, buckets: Sequence[Bucket]) -> list[FileReport]:
    taken = resumable.take_over(attempt.spark, attempt.scores, buckets)
    if taken:
        count = sum(report.judged for report in taken)
        say(f"ds={attempt.record.ds}: {len(taken)} units of {count:,} rows taken over from an earlier attempt")
    return taken


def _standing(attempt: _Attempt) -> DataFrame | None:
    """The day's committed scores, one for each text, if this attempt's engines would compute the same again where they
    compile the same precision, which a row says and only they know."""
    delta = table.open_table(Path(attempt.scores.table), table.SCORES)
    committed = table.committed(delta, attempt.record.ds)
    if committed is None:
        return None
    facts = table.commit_facts(delta, attempt.record.ds, committed.token)
    if not _computed_by(attempt).items() <= facts.items():
        return None
    kept = sql.struct(*rows.STANDING_FIELDS).alias(rows.STANDING)
    scores = table.read_scores(attempt.spark, attempt.scores.table, attempt.record.ds, schemas.ARCHIVE)
    return scores.dropDuplicates([binning.TEXT_HASH]).select(binning.TEXT_HASH, kept)


def _left(buckets: Sequence[Bucket], taken: Sequence[FileReport]) -> list[Bucket]:
    there = {report.bucket for report in taken}
    return [bucket for bucket in buckets if bucket.number not in there]


def _score(
    attempt: _Attempt, lines: DataFrame, buckets: Sequence[Bucket], standing: DataFrame | None
) -> list[FileReport]:
    if not buckets:
        return []
    messages = lines.filter("reason is null").select("id", "text", "pair", binning.TEXT_HASH)
    if standing is not None:
        messages = messages.join(standing, binning.TEXT_HASH, "left")
    count = sum(bucket.rows for bucket in buckets)
    tasks = min(attempt.tasks(count), len(buckets))
    arranged = binning.arranged(messages, buckets, attempt.bits, tasks)
    unit_rows = attempt.settings.nightly_unit_rows
    write = partial(shard_task.write_units, options=attempt.options, target=attempt.scores, unit_rows=unit_rows)
    with Progress("scoring", "rows", count, partial(tally.rows_done, attempt.scores)):
        return _reports(arranged.mapInArrow(write, shard_files.REPORT_DDL, profile=gpus.scoring_profile(attempt.spark)))


def _empty(attempt: _Attempt) -> FileReport:
    """A day on which nothing could be scored is a result too; without a file the table could not say whose."""
    return FileReport(*shard_files.write_file(attempt.scores, schemas.SCORES, []))


def _quarantine(
    attempt: _Attempt, lines: DataFrame, reasons: Mapping[str, int], files: Sequence[FileReport]
) -> tuple[dict[str, int], int | None, tuple[QuarantinedLine, ...]]:
    """Commit the lines that are no messages and those that no engine could score; reason → lines of both, the version
    of the quarantine table that holds them, and examples.

    Raises: GateFailed when they are too many. They are committed all the same, for people to look at.
    """
    poisoned = [each for file in files for each in file.poisoned]
    reasons = {**reasons, **({str(Reason.POISON): len(poisoned)} if poisoned else {})}
    if not reasons:
        return reasons, None, ()
    reason = sql.when(sql.col("id").isin(poisoned), sql.lit(str(Reason.POISON))).otherwise(sql.col("reason"))
    raw = sql.coalesce(sql.col("raw"), sql.col("text").cast("binary"))
    bad = lines.select("file", reason.alias("reason"), raw.alias("raw")).filter("reason is not null").coalesce(1)
    written = _reports(
        bad.mapInArrow(partial(quarantining.write_quarantine, target=attempt.set_aside), shard_files.REPORT_DDL)
    )
    if sum(file.rows for file in written) != sum(reasons.values()):
        raise JobError(f"ds={attempt.record.ds}: other lines were quarantined than were counted; nothing committed")
    folder = Path(attempt.set_aside.table)
    version = table.add_quarantined(folder, attempt.record.ds, written, attempt.scores.token)
    shown = quarantined.examples(quarantined.written(folder, written))
    if attempt.too_many(reasons):
        _show(shown)
        raise GateFailed(_findings_of_refused(attempt, reasons, shown), _why_refused(attempt, reasons))
    return reasons, version, shown


def _findings_of_refused(attempt: _Attempt, reasons: Mapping[str, int], shown: tuple[QuarantinedLine, ...]) -> Findings:
    """What is known of a day of which too much is quarantined: no row was judged."""
    verdict = gate.quarantine(attempt.lines, sum(reasons.values()), attempt.settings.quarantine_share)
    findings = Findings(rows=0, labels={}, lengths=(), quarantined=dict(reasons), verdicts=(verdict,))
    return replace(findings, quarantined_examples=shown)


def _show(examples: Sequence[QuarantinedLine]) -> None:
    found = (f"{line.reason}  {line.file}  {quarantined.printable(line.raw)}" for line in examples)
    say("\n  ".join(["quarantined, for example:", *found]))


def _why_refused(attempt: _Attempt, reasons: Mapping[str, int]) -> str:
    share, count, ds = attempt.settings.quarantine_share, sum(reasons.values()), attempt.record.ds
    # Rounded up: with this share the same day passes.
    enough = math.ceil(1000 * count / attempt.lines) / 1000
    return (
        f"ds={ds}: {count:,} of {attempt.lines:,} lines are quarantined, more than {share:.1%}: "
        f"{summary.counts(reasons)}; no score committed; `python -m batch_job quarantine --ds {ds}` prints them; "
        f"TANDEM_QUARANTINE_SHARE={enough:g} lets such a day pass"
    )


def _reports(reported: DataFrame) -> list[FileReport]:
    return [FileReport.from_json(row["report"]) for row in reported.collect()]


def _check(attempt: _Attempt, files: Sequence[FileReport], reasons: Mapping[str, int]) -> None:
    """Raises: JobError unless every planned line was written once, as a score or into quarantine."""
    written, set_aside = sum(file.rows for file in files), sum(reasons.values())
    if written + set_aside != attempt.lines:
        raise JobError(
            f"ds={attempt.record.ds}: {attempt.lines} lines planned, {written} scored and {set_aside} quarantined; "
            "nothing committed: was the input changed while the run was reading it?"
        )
    precisions = {file.precision for file in files if file.rows}
    if len(precisions) > 1:
        compiled = " and ".join(sorted(precisions))
        raise JobError(
            f"ds={attempt.record.ds}: executors compiled {compiled}, and a partition has one; `score --force` computes "
            "anew what an earlier attempt has left"
        )


def _facts(attempt: _Attempt, files: Sequence[FileReport], quarantine_version: int | None) -> dict[str, str]:
    """What the commit says of itself."""
    return {
        "tandem.ds": attempt.record.ds,
        "tandem.run": attempt.record.run_id,
        "tandem.attempt": str(attempt.scores.token),
        "tandem.plan": attempt.scores.plan_id,
        "tandem.content": schemas.add_contents(file.content for file in files),
        "tandem.quarantine_version": "" if quarantine_version is None else str(quarantine_version),
        "tandem.precision": files[0].precision,
        table.INPUT: attempt.record.input.identity,
        **_computed_by(attempt),
    }


def _computed_by(attempt: _Attempt) -> dict[str, str]:
    """What scores must have in common, beside their precision, to stand side by side in a partition."""
    return {"tandem.release": attempt.record.release, "tandem.schema": str(schemas.SCHEMA_VERSION)}
