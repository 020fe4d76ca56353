"""One attempt at a day: its lines are scored and quarantined as files, which one transaction then commits."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from batch_job.checks import gate
from batch_job.checks.examination import Written
from batch_job.checks.gate import GateFailed
from batch_job.identity import Tables
from batch_job.inputs import reading
from batch_job.inputs.messages import Reason
from batch_job.progress import Progress, Stopwatch, log
from batch_job.reporting import plain_text
from batch_job.run_record import Findings, QuarantinedLine, RunRecord, Scoring
from batch_job.scoring import rows, shard_task
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import NightlySettings
from batch_job.shards import binning, quarantining, schemas, shard_files, shard_spans, tally
from batch_job.shards.binning import Bin, Load
from batch_job.shards.shard_files import FileReport, Target
from batch_job.spark import gpus, session
from batch_job.spark.failures import failing_in_one_line
from batch_job.tables import committing, merging, quarantined, resumable, spark_reader, table
from batch_job.tables.fence import WATCH_SECONDS, Fence, Watch
from batch_job.tables.staged import Staged
from shared_model.errors import JobError
from shared_model.objects import located


def input_fingerprint(run: RunRecord, options: ScoringOptions, shard_rows: int) -> str:
    """A hash of everything that a partition's rows depend on: rows with the same one need not be computed again."""
    release = options.store().open(run.release)
    parts = {
        "input": run.input.fingerprint,
        "release": run.release,
        "precision": options.precision,
        "encoder": release.manifest.files["tokenizer.json"],
        "unit_rows": shard_rows,
        "units": binning.RULE,
        "schema": schemas.SCHEMA_VERSION,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def open_attempt(
    spark: SparkSession,
    run: RunRecord,
    options: ScoringOptions,
    tables: Tables,
    fence: Fence,
    settings: NightlySettings,
    force: bool = False,
    watch_seconds: float = WATCH_SECONDS,
) -> Iterator["Attempt"]:
    """An attempt at a planned day; its temporary files are gone afterwards. With `force` everything is computed anew,
    whatever earlier attempts have finished or committed. `watch_seconds`: between two looks at the fence.

    Raises: Stale once a newer attempt owns the day; JobError in one line for failures of Spark that are known.
    """
    fingerprint, stopwatch = input_fingerprint(run, options, settings.shard_rows(options.device)), Stopwatch()
    scores = Target(str(tables.scores), run.ds, fingerprint, fence.token)
    quarantine = Target(str(tables.quarantine), run.ds, fingerprint, fence.token, source="")
    with failing_in_one_line(), supervised(spark, fence, watch_seconds), ExitStack() as stack:
        tasks = session.tasks_for(spark, run.input.lines, settings.reading_task_rows)
        planned_once = session.planned_once(spark, tasks)
        with stopwatch.stage("read"):
            lines = stack.enter_context(reading.kept(planned_once, run.input, tasks, binning.with_hashes))
        try:
            yield Attempt(planned_once, run, options, settings, fence, scores, quarantine, lines, force, stopwatch)
        finally:
            for target in (scores, quarantine):
                resumable.remove_temporary(target)


@contextmanager
def supervised(spark: SparkSession, fence: Fence, seconds: float = WATCH_SECONDS) -> Iterator[None]:
    """Spark jobs started in here belong to the attempt, and are cancelled once it is superseded: then Stale."""
    context, group = spark.sparkContext, f"tandem/{fence.ds}/{fence.token}"
    context.setJobGroup(group, f"attempt {fence.token} at ds={fence.ds}", interruptOnCancel=True)
    try:
        with Watch(fence, lambda: context.cancelJobGroup(group), seconds):
            yield
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)


@dataclass(frozen=True)
class Attempt:
    """`scores` and `quarantine`: where its files go. `lines`: every line of the day, judged and hashed."""

    spark: SparkSession
    run: RunRecord
    options: ScoringOptions
    settings: NightlySettings
    fence: Fence
    scores: Target
    quarantine: Target
    lines: DataFrame
    force: bool
    stopwatch: Stopwatch

    def write(self) -> Written:
        """Score every message and quarantine every other line, as files that no version of the scores table holds yet.

        Raises: GateFailed when too many lines are quarantined; JobError when the counts do not reconcile.
        """
        ds, source, stage = self.run.ds, self.run.input, self.stopwatch.stage
        log(f"ds={ds}: reading {source.lines:,} lines of {len(source.files):,} files")
        with stage("read"):
            reasons, bins = self._count()
        with stage("resume"):
            adopted = [] if self.force else resumable.adopt_finished(self.spark, self.scores, bins)
            baseline = None if self.force else self._baseline()
        with stage("score"):
            finished = {report.bin_number for report in adopted}
            missing = [bin_ for bin_ in bins if bin_.number not in finished]
            # A day that is too damaged is not worth a night.
            fresh = self._score(missing, baseline) if missing and not self._too_many(reasons) else []
        files = [*adopted, *fresh]
        with stage("quarantine"):
            reasons, version, examples = self._quarantine(reasons, files)
        check_counts(ds, source.lines, files, reasons)
        # A day without a score has a file as well: without one the table could not tell its fingerprint.
        files = files or [FileReport(*shard_files.write_file(self.scores, schemas.SCORES, []))]
        with stage("merge"):
            most = self.settings.nightly_file_megabytes * 1e6
            merged = merging.merge_shards(self.spark, self.scores, files, most) if most else files
        return Written(self.scores, files, merged, reasons, self.lines.filter("reason is null"), examples, version)

    def commit(self, written: Written, facts: Mapping[str, str]) -> Scoring:
        """Make the written files the day's scores, in one transaction. `facts`: more for the commit to hold.

        Raises: Stale when a newer attempt owns the day; JobError when the table cannot be written.
        """
        return committing.commit(self.staged(written, facts), self.quarantine.table, self.fence.check)

    def staged(self, written: Written, facts: Mapping[str, str]) -> Staged:
        """The written files, and all that their commit needs."""
        return Staged(
            target=self.scores,
            files=tuple(written.files),
            quarantined=written.quarantined,
            quarantine_version=written.quarantine_version,
            facts={**self._facts(written), **facts},
            seconds=self.stopwatch.seconds,
            slots=session.scoring_slots(self.spark),
            merged=tuple(written.to_commit),
        )

    def _count(self) -> tuple[dict[str, int], list[Bin]]:
        """Reason → lines quarantined, and the bins of all others."""
        cell = sql.expr(f"case when reason is null then {binning.hash_cell(self._hash_cell_bits)} end as cell")
        load = sql.expr("count(*) as lines"), sql.expr(f"sum({binning.WORK}) as work")
        counted = self.lines.groupBy("reason", cell).agg(*load).toArrow()
        # As columns: as many rows as there are cells would be objects of several hundred bytes each.
        columns = (counted.column(name).to_pylist() for name in ("reason", "cell", "lines", "work"))
        reasons, cells = dict[str, int](), dict[int, Load]()
        for reason, number, lines, work in zip(*columns, strict=True):
            if reason is None:
                cells[number] = Load(lines, work)
            else:
                reasons[reason] = lines
        return dict(sorted(reasons.items())), binning.pack(cells, self._shard_rows)

    def _baseline(self) -> DataFrame | None:
        """The day's committed scores, one for each text, if this attempt's engines would compute the same at the same
        precision. Which precision an engine compiles, only executors know: rows carry theirs."""
        delta = table.open_table(located(self.scores.table), table.SCORES)
        committed = table.committed(delta, self.run.ds)
        if committed is None:
            return None
        facts = table.commit_facts(delta, self.run.ds, committed.token)
        if not self._computed_by.items() <= facts.items():
            return None
        kept = sql.struct(*rows.BASELINE_FIELDS).alias(rows.BASELINE)
        scores = spark_reader.read_scores(self.spark, self.scores.table, self.run.ds, schemas.ARCHIVE)
        return scores.dropDuplicates([binning.TEXT_HASH]).select(binning.TEXT_HASH, kept)

    def _score(self, bins: Sequence[Bin], baseline: DataFrame | None) -> list[FileReport]:
        messages = self.lines.filter("reason is null").select("id", "text", "pair", binning.TEXT_HASH)
        if baseline is not None:
            messages = messages.join(baseline, binning.TEXT_HASH, "left")
        count, task_rows = sum(bin_.rows for bin_ in bins), self.settings.task_rows(self.options.device)
        tasks = min(session.tasks_for(self.spark, count, task_rows), len(bins))
        arranged = binning.arranged(messages, bins, self._hash_cell_bits, tasks)
        score = partial(shard_task.score_shards, options=self.options, target=self.scores, shard_rows=self._shard_rows)
        with Progress(f"ds={self.run.ds}: scoring", "rows", count, tally.RowsDone(self.scores)):
            profile = gpus.scoring_profile(self.spark)
            reports = _reports(arranged.mapInArrow(score, shard_files.REPORT_DDL, profile=profile))
        shard_spans.note(reports)
        return reports

    def _quarantine(
        self, reasons: Mapping[str, int], files: Sequence[FileReport]
    ) -> tuple[dict[str, int], int | None, tuple[QuarantinedLine, ...]]:
        """Commit the lines that are no messages and those that no engine could score; reason → lines of both, the
        version of the quarantine table that holds them, and examples.

        Raises: GateFailed when they are too many. They are committed all the same, for people to look at.
        """
        poisoned = [each for file in files for each in file.poisoned]
        reasons = {**reasons, **({str(Reason.POISON): len(poisoned)} if poisoned else {})}
        if not reasons:
            return reasons, None, ()
        reason = sql.when(sql.col("id").isin(poisoned), sql.lit(str(Reason.POISON))).otherwise(sql.col("reason"))
        raw = sql.coalesce(sql.col("raw"), sql.col("text").cast("binary"))
        bad = self.lines.select("file", reason.alias("reason"), raw.alias("raw")).filter("reason is not null")
        write = partial(quarantining.write_quarantine, target=self.quarantine)
        written = _reports(bad.coalesce(1).mapInArrow(write, shard_files.REPORT_DDL))
        if sum(file.rows for file in written) != sum(reasons.values()):
            raise JobError(f"ds={self.run.ds}: other lines were quarantined than were counted; nothing committed")
        folder = located(self.quarantine.table)
        version = table.add_quarantined(folder, self.run.ds, written, self.fence.token)
        examples = quarantined.examples(quarantined.written(folder, written))
        if self._too_many(reasons):
            self._refuse(reasons, examples)
        return reasons, version, examples

    def _too_many(self, reasons: Mapping[str, int]) -> bool:
        """Whether so many lines are quarantined that no score may be committed."""
        return sum(reasons.values()) > self.settings.quarantine_share * self.run.input.lines

    def _refuse(self, reasons: Mapping[str, int], examples: tuple[QuarantinedLine, ...]) -> None:
        """Raises: GateFailed with findings of a day of which no row was judged."""
        shown = (f"{line.reason}  {line.file}  {quarantined.printable(line.raw)}" for line in examples)
        log("\n  ".join(["quarantined, for example:", *shown]))
        ds, lines, share = self.run.ds, self.run.input.lines, self.settings.quarantine_share
        count, counts = sum(reasons.values()), plain_text.counts(reasons)
        findings = Findings(
            rows=0,
            labels={},
            lengths=(),
            quarantined=dict(reasons),
            verdicts=(gate.quarantine(lines, count, share),),
            quarantined_examples=examples,
        )
        # Rounded up: with this share the same day passes.
        enough = math.ceil(1000 * count / lines) / 1000
        raise GateFailed(
            findings,
            f"ds={ds}: {count:,} of {lines:,} lines are quarantined, more than {share:.1%}: "
            f"{counts}; no score committed; `python -m batch_job quarantine --ds {ds}` prints them; "
            f"TANDEM_QUARANTINE_SHARE={enough:g} lets such a day pass",
        )

    @property
    def _hash_cell_bits(self) -> int:
        return binning.hash_cell_bits(self.run.input.lines, self._shard_rows)

    @property
    def _shard_rows(self) -> int:
        return self.settings.shard_rows(self.options.device)

    @property
    def _computed_by(self) -> dict[str, str]:
        """The commit facts that scores of one partition share, beside their precision."""
        return {"tandem.release": self.run.release, "tandem.schema": str(schemas.SCHEMA_VERSION)}

    def _facts(self, written: Written) -> dict[str, str]:
        version = written.quarantine_version
        return {
            "tandem.ds": self.run.ds,
            "tandem.run": self.run.run_id,
            "tandem.attempt": str(self.fence.token),
            "tandem.plan": self.scores.fingerprint,
            "tandem.content": schemas.add_contents(file.content for file in written.files),
            "tandem.quarantine_version": "" if version is None else str(version),
            "tandem.precision": written.files[0].precision,
            table.INPUT: self.run.input.identity,
            **self._computed_by,
        }


def check_counts(ds: str, lines: int, files: Sequence[FileReport], reasons: Mapping[str, int]) -> None:
    """Raises: JobError unless every planned line was written once, as a score or into quarantine, at one precision."""
    scored, rejected = sum(file.rows for file in files), sum(reasons.values())
    if scored + rejected != lines:
        raise JobError(
            f"ds={ds}: {lines} lines planned, {scored} scored and {rejected} quarantined; "
            "nothing committed: was the input changed while the run was reading it?"
        )
    precisions = {file.precision for file in files if file.rows}
    if len(precisions) > 1:
        compiled = " and ".join(sorted(precisions))
        raise JobError(
            f"ds={ds}: executors compiled {compiled}, and a partition has one; `score --force` computes anew what an "
            "earlier attempt has left"
        )


def _reports(reported: DataFrame) -> list[FileReport]:
    return [FileReport.from_json(row["report"]) for row in reported.collect()]
