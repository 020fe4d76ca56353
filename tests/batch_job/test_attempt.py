"""One partition through real Spark: what is read, what is written, and who may commit."""

import hashlib
import json
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import redis
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from batch_job import attempt as attempt_module
from batch_job import progress, read_scores
from batch_job.identity import Tables
from batch_job.progress import Progress
from batch_job.run_record import Scoring
from batch_job.scoring import models
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import InputSettings
from batch_job.shards import binning
from batch_job.shards.shard_files import FileReport
from batch_job.steps.plan import plan_run
from batch_job.steps.unchanged import already_committed
from batch_job.tables import table
from batch_job.tables.fence import Fence
from shared_model.demo_messages import DAMAGED_LINES
from shared_model.errors import JobError, Stale
from shared_model.releases.store import Store
from shared_model.settings import StateSettings
from tests.batch_job import family
from tests.batch_job.conftest import DAY, SMALL, attempt, data_files, held_files, message, planned, write_day
from tests.batch_job.shards import written
from tests.shared_model import small_release

LINES = [message(number, f"my card number {number % 40} has not arrived") for number in range(200)]


def commits(folder: Path) -> int:
    return sum(entry["operation"] == "WRITE" for entry in DeltaTable(str(folder)).history())


def test_every_line_is_scored_or_quarantined_once(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(attempt_module, "Progress", partial(Progress, seconds=0.01))
    again = [message(7, "said twice"), message(7, "said three times")]
    write_day(state, [*LINES[:100], *DAMAGED_LINES, *again, *LINES[100:]])
    write_day(state, [message(3, "the same id in another file"), message(900, "new")], file="z.jsonl")
    run = planned(state, client)
    done = attempt(spark, state, client, options, run)

    assert done.quarantined == {"bad_encoding": 1, "bad_json": 1, "duplicate_id": 3, "empty": 1, "wrong_type": 2}
    assert done.rows == 201
    said = capsys.readouterr().err
    assert f"ds={DAY}: reading {run.input.lines} lines of 2 files\n" in said
    assert "scoring: 0 of 201 rows (0%) in 0 s\n" in said
    assert "scoring: 201 of 201 rows (100%) in " in said
    assert f"ds={DAY}: committing " in said
    assert done.slots == 2
    assert done.busy_share is not None
    assert 0 < done.busy_share <= 1
    assert done.rows + sum(done.quarantined.values()) == run.input.lines
    scored = {row["id"]: row for row in read_scores(spark, state.scores_table, DAY).collect()}
    assert len(scored) == 201
    # Of lines that share an id, the first stays.
    assert scored["m00007"]["text_hash"] == scored["m00047"]["text_hash"]
    assert scored["m00003"]["text_hash"] == scored["m00043"]["text_hash"]
    assert {row["precision"] for row in scored.values()} == {done.precision}
    assert all(row["label"] == row["top_k"][0]["label"] for row in scored.values())
    assert all(row["scored_at"] is not None and len(row["encoding_key"]) == 16 for row in scored.values())
    quarantine = [
        row
        for batch in table.read_files(DeltaTable(str(state.state / "quarantine")), DAY, ["attempt", "reason", "raw"])
        for row in batch.to_pylist()
    ]
    assert {row["attempt"] for row in quarantine} == {done.token}
    assert {row["raw"] for row in quarantine} >= {*DAMAGED_LINES, *again}
    assert DeltaTable(str(state.state / "quarantine")).version() == done.quarantine_version
    commit = DeltaTable(str(state.scores_table)).history(1)[0]
    assert commit["tandem.quarantine_version"] == str(done.quarantine_version)


def test_engines_compile_in_the_workers_that_use_them_and_never_before_a_fork(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(models, "_opened", {})
    write_day(state, LINES[:60])
    done = attempt(spark, state, client, options, planned(state, client))
    assert models._opened == {}
    python = {it["pid"]: it["ppid"] for it in family.descendants() if "pyspark.daemon" in (it["cmdline"] or [])}
    forked = {pid for pid, parent in python.items() if parent in python}
    with_an_engine = {pid for pid in python if "openvino" in Path(f"/proc/{pid}/maps").read_text()}
    assert {worker.pid for worker in done.workers} <= with_an_engine <= forked < set(python)


def test_a_day_of_another_format_and_other_columns_is_scored(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions, tmp_path: Path
) -> None:
    archive = tmp_path / "chats" / "2026" / "01"
    archive.mkdir(parents=True)
    lines = ["key,body,new", *(f'k{number},"my card\nhas ""not"" arrived",x' for number in range(30)), "short"]
    (archive / "14.csv").write_text("\n".join(lines))
    (archive / "14.md").write_text("no message")
    inputs = InputSettings(input_path=f"{tmp_path}/chats/{{year}}/{{month}}", input_id="key", input_text="body")
    written.commit(state.scores_table, DAY, ["yes"])
    run = plan_run(state, client, DAY, "run", inputs)
    done = attempt(spark, state, client, options, run)
    assert (done.rows, done.quarantined) == (30, {"wrong_type": 1})
    tables = Tables.for_input(state, run.input.identity)
    # Beside the day that the default archive has in its own.
    assert commits(state.scores_table) == 1
    assert tables.quarantine.is_dir()
    assert table.inputs(DeltaTable(str(tables.scores))) == {DAY: f"{inputs.input_path} (body)"}
    scored = read_scores(spark, tables.scores, DAY).collect()
    assert {row["id"] for row in scored} == {f"k{number}" for number in range(30)}
    text = b'my card\nhas "not" arrived'
    assert {row["text_hash"] for row in scored} == {hashlib.sha256(text).hexdigest()}


def test_a_day_without_one_message_is_a_result(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions
) -> None:
    write_day(state, [b"", b"nothing"])
    run = planned(state, client)
    done = attempt(spark, state, client, options, run)
    assert (done.rows, done.quarantined) == (0, {"bad_json": 1, "empty": 1})
    assert (
        already_committed(
            Tables.for_input(state), run, attempt_module.input_fingerprint(run, options, SMALL.nightly_unit_rows)
        )
        is not None
    )


def test_a_committed_plan_is_known_and_another_input_is_not(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions
) -> None:
    write_day(state, LINES[:20])
    run = planned(state, client)
    done = attempt(spark, state, client, options, run)
    standing = already_committed(
        Tables.for_input(state), run, attempt_module.input_fingerprint(run, options, SMALL.nightly_unit_rows)
    )
    assert standing is not None
    assert (standing.token, standing.rows) == (done.token, 20)
    write_day(state, LINES[:21])
    changed = planned(state, client)
    assert (
        already_committed(
            Tables.for_input(state),
            changed,
            attempt_module.input_fingerprint(changed, options, SMALL.nightly_unit_rows),
        )
        is None
    )


def test_another_shard_size_precision_release_or_input_is_another_plan(
    state: StateSettings, client: "redis.Redis", options: ScoringOptions, tmp_path: Path
) -> None:
    write_day(state, LINES[:20])
    run = planned(state, client)
    plan = attempt_module.input_fingerprint(run, options, 25)
    release = small_release.seal(Store(tmp_path)).id
    others = [
        attempt_module.input_fingerprint(run, options, 24),
        attempt_module.input_fingerprint(run, replace(options, int8=True), 25),
        attempt_module.input_fingerprint(
            replace(run, release=release), replace(options, releases_root=str(tmp_path)), 25
        ),
        attempt_module.input_fingerprint(replace(run, input=replace(run.input, fingerprint="other")), options, 25),
    ]
    assert len({plan, *others}) == 5
    assert attempt_module.input_fingerprint(planned(state, client, run_id="another"), options, 25) == plan


def test_shards_cut_by_another_rule_are_another_plan(
    state: StateSettings, client: "redis.Redis", options: ScoringOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_day(state, LINES[:20])
    run = planned(state, client)
    plan = attempt_module.input_fingerprint(run, options, SMALL.nightly_unit_rows)
    monkeypatch.setattr(binning, "RULE", binning.RULE + 1)
    assert attempt_module.input_fingerprint(run, options, SMALL.nightly_unit_rows) != plan


def test_nothing_is_committed_when_the_counts_do_not_add_up(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions
) -> None:
    write_day(state, LINES[:20])
    run = planned(state, client)
    file = run.input.files[0]
    wrong = replace(run, input=replace(run.input, files=(replace(file, lines=file.lines + 1),)))
    with pytest.raises(JobError, match="21 lines planned, 20 scored and 0 quarantined; nothing committed"):
        attempt(spark, state, client, options, wrong)
    assert table.last_attempt([state.scores_table], DAY) == -1
    # Finished shards wait for the next attempt, and no reader sees them.
    assert len(data_files(state.scores_table)) > 0


def two_at_the_barrier(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions
) -> list[Scoring | Stale]:
    """Two runs of one day, both computed, neither committed, let go together. Neither adopts shards of the other that
    are finished first."""
    write_day(state, LINES[:60])
    barrier = threading.Barrier(2, timeout=60)

    def run(name: str) -> Scoring | Stale:
        try:
            return attempt(spark, state, client, options, planned(state, client, run_id=name), barrier.wait, force=True)
        except Stale as stale:
            return stale

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, ["first", "second"]))


def test_of_two_runs_held_before_commit_one_commits_and_the_other_is_stale(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions
) -> None:
    committed, stale = sorted(
        two_at_the_barrier(spark, state, client, options), key=lambda outcome: isinstance(outcome, Stale)
    )
    assert isinstance(committed, Scoring)
    assert isinstance(stale, Stale)
    assert commits(state.scores_table) == 1
    assert table.last_attempt([state.scores_table], DAY) == committed.token == 2
    # The stale attempt's shards cannot be adopted: their sidecars were deleted by the commit.
    assert data_files(state.scores_table) > held_files(state.scores_table)
    assert not list(state.scores_table.glob("ds=*/**/*.json"))


@pytest.mark.proof
def test_control_without_the_check_both_commit(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Fence, "check", lambda fence: None)
    monkeypatch.setattr(table, "refuse_stale", lambda *_: None)
    outcomes = two_at_the_barrier(spark, state, client, options)
    assert all(isinstance(outcome, Scoring) for outcome in outcomes)
    assert commits(state.scores_table) == 2


def wake_after_a_newer_commit(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions
) -> Scoring:
    """An attempt that sleeps before its commit while a newer one commits and Redis loses its memory."""
    write_day(state, LINES[:40])
    run = planned(state, client)

    def newer_commits_and_redis_is_lost() -> None:
        attempt(spark, state, client, options, run)
        client.flushall()

    return attempt(spark, state, client, options, run, newer_commits_and_redis_is_lost)


def test_an_attempt_that_wakes_after_a_newer_commit_is_refused_without_redis(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions
) -> None:
    """The table alone refuses it."""
    with pytest.raises(Stale, match="attempt 2 at ds=2026-01-14 is committed, this is attempt 1"):
        wake_after_a_newer_commit(spark, state, client, options)
    assert table.last_attempt([state.scores_table], DAY) == 2
    # The newer one has adopted its shards.
    assert data_files(state.scores_table) == held_files(state.scores_table)
    assert not list(state.scores_table.glob("ds=*/**/*.json"))


@pytest.mark.proof
def test_control_without_the_tables_refusal_it_takes_the_newer_ones_place(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "refuse_stale", lambda *_: None)
    assert wake_after_a_newer_commit(spark, state, client, options).token == 1
    assert table.last_attempt([state.scores_table], DAY) == 1


def test_a_superseded_attempt_stops_its_spark_job_within_five_seconds(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions
) -> None:
    fence = Fence.take(client, DAY, -1)
    took: list[float] = []

    def endless(_: object) -> object:
        time.sleep(30)
        return iter([])

    def supersede() -> None:
        while not spark.sparkContext.statusTracker().getActiveJobsIds():
            time.sleep(0.05)
        took.append(time.monotonic())
        Fence.take(client, DAY, -1)

    newer = threading.Thread(target=supersede)
    newer.start()
    with pytest.raises(Stale), attempt_module.supervised(spark, fence):
        spark.sparkContext.parallelize([1], 1).mapPartitions(endless).collect()
    newer.join()
    assert time.monotonic() - took[0] < 5


def test_a_task_that_fails_leaves_no_rows_behind(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions, tmp_path: Path
) -> None:
    """A release that is damaged where the executors are: the run fails, readers keep what they had."""
    write_day(state, LINES[:20])
    run = planned(state, client)
    done = attempt(spark, state, client, options, run)
    copy = tmp_path / "releases"
    shutil.copytree(options.releases_root, copy, copy_function=os.link)
    for weights in copy.glob("*/*/*/model.bin"):
        weights.unlink()
        weights.write_bytes(b"damaged")
    with pytest.raises(JobError, match=r"^[^\n]*does not match its sha256[^\n]*$"):
        attempt(spark, state, client, replace(options, releases_root=str(copy)), run, force=True)
    assert table.last_attempt([state.scores_table], DAY) == done.token
    assert read_scores(spark, state.scores_table, DAY).count() == 20


def test_ids_with_any_text_survive(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions
) -> None:
    ids = ["a\u0000b", "日本", "x" * 2000, " ", "null", "ds=1/2", "🙂"]
    write_day(state, [json.dumps({"id": each, "text": "hello"}).encode() for each in ids])
    attempt(spark, state, client, options, planned(state, client))
    assert sorted(row["id"] for row in read_scores(spark, state.scores_table).collect()) == sorted(ids)


def test_a_stage_in_two_parts_takes_the_seconds_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([1.0, 3.0, 10.0, 11.0, 20.0, 24.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(moments))
    watch = progress.Stopwatch()
    for name in ("read", "score", "read"):
        with watch.stage(name):
            pass
    assert watch.seconds == {"read": 6.0, "score": 1.0}


def test_files_of_two_precisions_are_no_partition_and_the_way_out_is_said() -> None:
    files = [FileReport(f"{number}", 1, 10, precision=each) for number, each in enumerate(("bf16", "fp32"))]
    attempt_module.check_counts(DAY, 20, [files[0], files[0]], {})
    with pytest.raises(JobError, match=r"executors compiled bf16 and fp32, .*; `score --force` computes anew"):
        attempt_module.check_counts(DAY, 20, files, {})
