"""A partition that the gate refuses stays invisible, its figures are kept, and a person may let it pass."""

from dataclasses import replace
from typing import Any, NoReturn

import pytest
import redis
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from batch_job import run_record
from batch_job.checks import agreement, examination, gate
from batch_job.checks.examination import Written
from batch_job.run_record import Agreement, Approval, Outcome, RunRecord
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import NightlySettings
from batch_job.shards import shard_files
from batch_job.shards.shard_files import FileReport, Target
from batch_job.spark.failures import failing_in_one_line
from batch_job.steps.commit import commit_staged
from batch_job.steps.context import StepContext
from batch_job.steps.score import score_day
from batch_job.tables import table
from shared_model.errors import JobError
from shared_model.settings import DeferredSettings, StateSettings
from tests.batch_job.conftest import DAY, message, planned, write_day
from tests.batch_job.shards import written

SECOND, THIRD = "2026-01-15", "2026-01-16"
#: Enough rows to be judged, of few texts, so that they are scored at once.
LINES = [message(number, f"my card number {number % 40} has not arrived") for number in range(1_100)]
OTHERS = [message(number, "why was my transfer declined so slowly") for number in range(1_100)]


@pytest.fixture
def step(state: StateSettings, client: "redis.Redis") -> StepContext:
    path = state.runs_dir / DAY / "run.json"
    return StepContext(path, state, NightlySettings(quarantine_share=1.0), DeferredSettings(), state.redis_url, client)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Agreement | None]:
    """Results of the comparison of precisions, the next day's first; test_agreement.py runs engines."""
    told: list[Agreement | None] = []
    monkeypatch.setattr(agreement, "measure", lambda *_: told.pop(0))
    return told


def score(spark: SparkSession, step: StepContext, options: ScoringOptions, day: str, *accepted: str) -> RunRecord:
    step = replace(step, path=step.path.parents[1] / day / "run.json")
    run = planned(step.state, step.client, day)
    run_record.write(step.path, run)
    return score_day(step, run, spark, options, False, accepted)


def verdict(run: RunRecord, name: str) -> tuple[Outcome, bool]:
    assert run.findings
    [found] = [it for it in run.findings.verdicts if it.gate == name]
    return found.outcome, found.accepted


def committed_days(state: StateSettings) -> list[str]:
    return sorted(it["ds"] for it in DeltaTable(str(state.scores_table)).partitions())


def look(spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions) -> RunRecord:
    """The second day, of files that no version of the table holds, is looked at; of the first one's labels some are
    other ones."""
    written.commit(state.scores_table, DAY, ["yes", "no", "yes"])
    files = [written.file(state.scores_table, written.batch([text], ["yes"]), ds=SECOND) for text in ("a", "b")]
    write_day(state, LINES[:2], SECOND)
    run, target = planned(state, client, SECOND), Target(str(state.scores_table), SECOND, "plan", 1)
    with failing_in_one_line():
        messages = spark.createDataFrame([], "id string")
        return replace(run, findings=examination.examine(run, Written(target, files, files, {}, messages), options))


def test_executors_read_back_and_the_driver_does_not(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    found: list[Agreement | None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("the driver reads a scored file")

    found.append(None)
    # Workers have modules of their own.
    monkeypatch.setattr(shard_files, "read_back", refuse)
    monkeypatch.setattr(table, "read_file", refuse)
    findings = look(spark, state, client, options).findings
    assert findings
    assert (findings.rows, findings.labels, findings.lengths) == (2, {"yes": 2}, (2,))
    assert (findings.before, findings.labels_before) == (DAY, {"yes": 2, "no": 1})
    assert "reading back: 2 of 2 files (100%) in" in capsys.readouterr().err


def test_a_file_that_is_not_as_it_was_written_is_named(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    found: list[Agreement | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def damaged(*arguments: Any, **named: Any) -> FileReport:
        report = write(*arguments, **named)
        if named.get("ds") == SECOND:
            path = state.scores_table / report.path
            # Beyond the footer's length: no page's checksum covers it.
            path.write_bytes(path.read_bytes() + path.read_bytes()[-8:])
        return report

    write = written.file
    monkeypatch.setattr(written, "file", damaged)
    with pytest.raises(JobError, match=r"ds=2026-01-15/.*\.parquet cannot be read back: "):
        look(spark, state, client, options)


def test_a_day_of_other_labels_is_refused_and_then_accepted(
    spark: SparkSession, state: StateSettings, step: StepContext, options: ScoringOptions, found: list[Agreement | None]
) -> None:
    write_day(state, [*LINES, b"nothing"], DAY)
    write_day(state, OTHERS, SECOND)
    found += [Agreement(2_000, 1_900, 1_000, 1_000), None, None]
    first = score(spark, step, options, DAY)
    assert first.findings
    assert verdict(first, gate.LABELS) == (Outcome.REPORT_ONLY, False)
    assert {verdict(first, name) for name in (gate.COUNTS, gate.FINITE, gate.CLEAR)} == {(Outcome.OK, False)}
    assert (first.findings.rows, first.findings.quarantined) == (1_100, {"bad_json": 1})
    [example] = first.findings.quarantined_examples
    assert (example.reason, example.file, example.raw) == ("bad_json", "messages.jsonl", "nothing")
    assert sum(first.findings.labels.values()) == sum(first.findings.lengths) == 1_100
    assert len(first.findings.pace) == 60
    assert first.scoring
    assert first.scoring.seconds["gate"] > 0
    version = DeltaTable(str(state.scores_table)).version()

    with pytest.raises(
        gate.GateFailed, match=r"ds=2026-01-15: refused by the gate, nothing committed: labels: PSI \(population "
    ):
        score(spark, step, options, SECOND)
    assert DeltaTable(str(state.scores_table)).version() == version
    assert committed_days(state) == [DAY]
    refused = run_record.read(state.runs_dir / SECOND / "run.json")
    assert refused.scoring is None
    assert verdict(refused, gate.LABELS) == (Outcome.FAIL, False)
    assert verdict(refused, gate.CLEAR) == (Outcome.UNPROVEN, False)
    assert refused.findings
    assert (refused.findings.before, sum(refused.findings.labels_before.values())) == (DAY, 1_100)

    staged = replace(step, path=state.runs_dir / SECOND / "run.json")
    committed = commit_staged(staged, refused, refused.findings, Approval("ada", "now"))
    assert committed.scoring
    assert (committed.scoring.rows, committed.scoring.token) == (1_100, refused.token)
    assert committed.scoring.seconds.keys() >= {"score", "gate", "commit"}
    assert committed_days(state) == [DAY, SECOND]
    assert DeltaTable(str(state.scores_table)).version() == version + 1

    accepted = score(spark, step, options, SECOND, gate.LABELS)
    assert verdict(accepted, gate.LABELS) == (Outcome.FAIL, True)
    assert accepted.scoring
    assert accepted.scoring.content == committed.scoring.content
    assert DeltaTable(str(state.scores_table)).version() == version + 2


def test_agreement_is_held_against_what_the_last_days_commit_says(
    spark: SparkSession, state: StateSettings, step: StepContext, options: ScoringOptions, found: list[Agreement | None]
) -> None:
    for day in (DAY, SECOND):
        write_day(state, LINES[:40], day)
    found += [Agreement(2_000, 1_900, 1_000, 1_000), Agreement(2_000, 1_838, 1_000, 1_000)]
    score(spark, step, options, DAY)
    # The record is gone; the table knows.
    (state.runs_dir / DAY / "run.json").unlink()
    with pytest.raises(
        gate.GateFailed, match=r"agreement-drop: INT8 says the same on 91\.90% of 2,000 texts, on 95\.00%"
    ):
        score(spark, step, options, SECOND)
    assert committed_days(state) == [DAY]


def test_what_tasks_reported_and_what_files_hold_must_be_the_same(
    spark: SparkSession,
    state: StateSettings,
    step: StepContext,
    options: ScoringOptions,
    found: list[Agreement | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file that another process cut short after its task reported it; no flag accepts that."""
    write_day(state, LINES[:40], DAY)
    found.append(None)
    read = gate.counts
    monkeypatch.setattr(gate, "counts", lambda planned, reported, held, aside: read(planned, reported, held - 1, aside))
    with pytest.raises(gate.GateFailed, match=r"counts: 40 lines in, 39 rows written \(40 reported\), 0 quarantined"):
        score(spark, step, options, DAY, *gate.ACCEPTABLE)
    assert table.last_attempt([state.scores_table], DAY) == -1
    assert run_record.read(step.path).staged == ""


def test_a_day_that_is_too_damaged_leaves_its_examples_in_the_record(
    spark: SparkSession, state: StateSettings, step: StepContext, options: ScoringOptions
) -> None:
    write_day(state, [*LINES[:40], b"", b"no JSON"], DAY)
    with pytest.raises(gate.GateFailed, match=r"2 of 42 lines are quarantined, more than 1\.0%"):
        score(spark, replace(step, nightly=NightlySettings(quarantine_share=0.01)), options, DAY)
    refused = run_record.read(step.path)
    assert refused.findings
    assert (refused.scoring, refused.findings.quarantined) == (None, {"bad_json": 1, "empty": 1})
    assert {(it.reason, it.raw) for it in refused.findings.quarantined_examples} == {
        ("bad_json", "no JSON"),
        ("empty", ""),
    }
    assert verdict(refused, gate.QUARANTINE) == (Outcome.FAIL, False)
