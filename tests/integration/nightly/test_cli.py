"""The steps as Airflow and people run them: processes, exit codes, one record, real spark-submit."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
import redis.asyncio
from deltalake import DeltaTable

from batch_job import driver, run_record
from batch_job.__main__ import main
from batch_job.launch import spark_submit
from batch_job.run_record import RunRecord, Scoring, State
from batch_job.settings import NightlySettings
from batch_job.steps import context
from batch_job.tables import table
from batch_job.tables.fence import Fence, latest_token
from shared_model import demo_messages
from shared_model.errors import Stale
from shared_model.redis_store import keys
from shared_model.releases.store import Release
from shared_model.settings import DeferredSettings, StateSettings
from tests import otlp
from tests.batch_job.cluster import other_python
from tests.batch_job.conftest import DAY, NEXT_DAY, Cli, message, planned, write_day
from tests.batch_job.deferred.deferring import result, submit_to
from tests.batch_job.shards import written
from tests.otlp import Collector

#: Of the Airflow task that starts the steps.
TRACE, TASK = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def recorded(state: StateSettings, client: "redis.Redis") -> Path:
    """A planned run's record, with input."""
    write_day(state, [message(number, "hello") for number in range(10)])
    path = state.runs_dir / DAY / "run.json"
    run_record.write(path, planned(state, client))
    return path


def succeed(cli: Cli, *arguments: str) -> str:
    done = cli(*arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def newest(state: StateSettings, day: str) -> RunRecord:
    return run_record.read(max((state.runs_dir / day).glob("*.json"), key=lambda path: path.stat().st_mtime))


def version_of(state: StateSettings) -> int:
    return int(DeltaTable(str(state.scores_table)).version())


def find_it_unchanged(cli: Cli, state: StateSettings, day: str) -> None:
    version = version_of(state)
    succeed(cli, "plan", "--ds", day)
    assert f"ds={day}: unchanged" in succeed(cli, "score", "--ds", day)
    assert "live already as epoch" in succeed(cli, "publish", "--ds", day)
    assert "nothing was scored: an earlier run had committed the day" in succeed(cli, "report", "--ds", day)
    assert version_of(state) == version


def drain_answers(cli: Cli, state: StateSettings, day: str) -> None:
    version = version_of(state)
    request_id = submit_to(state.redis_url, "I forgot my passcode")
    assert "1 deferred requests answered" in succeed(cli, "drain", "--ds", day)
    item = result(state.redis_url, request_id)
    assert item is not None
    assert item.response is not None
    assert newest(state, day).drained == 1
    assert version_of(state) == version + 1


def score_anew(cli: Cli, state: StateSettings, day: str) -> None:
    before, version = newest(state, day).scoring, version_of(state)
    assert before is not None
    assert f"ds={day}: {before.rows:,} rows committed" in succeed(cli, "score", "--ds", day, "--force")
    run = newest(state, day)
    assert run.scoring is not None
    assert (run.state, run.scoring.token, run.scoring.content) == (State.COMMITTED, before.token + 1, before.content)
    assert (run.scoring.units_resumed, run.scoring.rows_reused) == (0, 0)
    assert run.scoring.table_version == version_of(state) == version + 1
    assert sum(worker.rows for worker in run.scoring.workers) == before.rows


def workers_are_shown(scoring: Scoring, summary: str) -> None:
    assert sum(worker.rows for worker in scoring.workers) == scoring.rows
    for worker in scoring.workers:
        assert f"worker      pid {worker.pid}: {worker.rows:,} rows" in summary


@contextlib.contextmanager
def jvms() -> Iterator[set[int]]:
    """Scheduling policies of the JVMs that this process starts."""
    seen, over = set[int](), threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            for process in psutil.Process().children(recursive=True):
                # It may have ended.
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    if process.name() == "java":
                        seen.add(os.sched_getscheduler(process.pid))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        over.set()
        looking.join()
    assert seen


def read_rows(cli: Cli, day: str, release: Release) -> None:
    assert len(cli("read", "--ds", day, "--limit", "7").stdout.splitlines()) == 8
    rows = [json.loads(line) for line in cli("read", "--ds", day, "--limit", "0", "--json").stdout.splitlines()]
    assert Counter(row["source"] for row in rows) == {"archive": 300, "deferred": 1}
    assert len({row["id"] for row in rows}) == len(rows)
    assert {(row["ds"], row["release"], len(row["encoding_key"])) for row in rows} == {(day, release.id, 32)}


def roll_back_and_publish_again(cli: Cli, state: StateSettings, release: Release) -> None:
    back = f"epoch {NEXT_DAY}.1 is no longer live; epoch {DAY}.1 is live again"
    assert back in succeed(cli, "rollback", "--ds", NEXT_DAY)
    assert f"ds={NEXT_DAY} of the default archive: not live: a person went back" in succeed(
        cli, "publish", "--ds", NEXT_DAY
    )
    assert newest(state, NEXT_DAY).state is State.COMMITTED
    again = cli("rollback", "--ds", NEXT_DAY)
    assert (again.returncode, again.stdout) == (2, "")
    live = f"epoch {DAY}.1, of ds={DAY}, is live for release {release.id}"
    assert again.stderr == f"batch_job rollback: nothing was rolled back: {live}, and ds={NEXT_DAY} is not\n"
    assert f"keys as epoch {NEXT_DAY}.1" in succeed(cli, "publish", "--ds", NEXT_DAY, "--force")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with otlp.collecting() as made:
        yield made


def steps_are_one_trace(collector: Collector) -> None:
    """Of the caller's: `plan`, and `score` with its stages in Spark, and what each Python worker did."""
    spans = {span.name: span for span in collector.of(TRACE)}
    assert {spans[it].parent for it in ("batch_job plan", "batch_job score")} == {TASK}
    in_spark = spans["batch_job score in Spark"]
    assert in_spark.parent == spans["batch_job score"].id
    # Spark takes the place of the process that starts it.
    assert {spans[it].attributes["process.exit.code"] for it in ("batch_job plan", in_spark.name)} == {0}
    stages = {span.name: span for span in spans.values() if span.parent == in_spark.id}
    assert {"read", "score", "gate", "merge"} <= set(stages)
    shards = [span for span in collector.of(TRACE) if span.name == "shards"]
    assert {span.parent for span in shards} == {stages["score"].id}
    assert sum(span.attributes["tandem.rows"] for span in shards) == 1_100
    for span in shards:
        assert in_spark.began < span.began < span.ended < in_spark.ended
    assert b"my own message" not in collector.raw


@pytest.mark.proof
@pytest.mark.parametrize("idle", [False, True])
def test_two_days_from_messages_to_redis(
    cli: Cli,
    environment: dict[str, str],
    state: StateSettings,
    client: "redis.Redis",
    release: Release,
    idle: bool,
) -> None:
    """In every run of the suite `test_own_messages…` and the DAG's night start these steps."""
    demo_messages.write_archive(state.messages_dir, messages=600)
    # Small days, and as many damaged lines in each as in a large one.
    environment["TANDEM_QUARANTINE_SHARE"] = "0.02"
    environment["TANDEM_NIGHTLY_IDLE"] = str(idle)
    for day in (DAY, NEXT_DAY):
        request_id = submit_to(state.redis_url, "my card has not arrived")
        succeed(cli, "plan", "--ds", day)
        with jvms() as priorities:
            said = succeed(cli, "score", "--ds", day)
        assert f"ds={day}: reading 305 lines of 1 files" in said
        assert "scoring: 300 of 300 rows in " in said
        assert f"ds={day}: 300 rows committed; scored at " in said
        # The JVM itself says one line, of a module that Spark asks for.
        assert [line for line in said.splitlines() if line.startswith(("Using", "Setting")) or " INFO " in line] == []
        assert (os.SCHED_IDLE in priorities) is idle
        assert f"keys as epoch {day}.1" in succeed(cli, "publish", "--ds", day)
        summary = succeed(cli, "report", "--ds", day)
        assert "committed   300 rows" in summary
        assert "quarantined 5 lines (bad_encoding 1, bad_json 1, empty 1, wrong_type 2)" in summary
        assert "deferred    1 requests answered" in summary
        item = result(state.redis_url, request_id)
        assert item is not None
        assert item.response is not None
        run = newest(state, day)
        assert run.state is State.PUBLISHED
        assert run.scoring is not None
        assert run.scoring.precision == item.response.precision
        workers_are_shown(run.scoring, summary)
    assert client.hget(keys.epoch_pointer(release.id), "ds") == NEXT_DAY.encode()
    assert DeltaTable(str(state.scores_table)).protocol().min_writer_version == 2

    find_it_unchanged(cli, state, NEXT_DAY)
    assert latest_token(client, NEXT_DAY) == 1
    read_rows(cli, NEXT_DAY, release)

    roll_back_and_publish_again(cli, state, release)
    drain_answers(cli, state, NEXT_DAY)
    score_anew(cli, state, NEXT_DAY)


def test_own_messages_are_scored_beside_the_archive_that_the_state_has(
    cli: Cli,
    environment: dict[str, str],
    state: StateSettings,
    client: "redis.Redis",
    tmp_path: Path,
    collector: Collector,
) -> None:
    """README's own CSV, on a day that is committed of the default archive, as is one before it."""
    for day in (DAY, NEXT_DAY):
        written.commit(state.scores_table, day, ["yes"] * 1_000, **{table.INPUT: run_record.ARCHIVE})
    write_day(state, [message(number, "hello") for number in range(10)], NEXT_DAY)
    archived, scoring = planned(state, client, NEXT_DAY, "archived"), Scoring(1, "plan", 2, 10, {})
    archived_at = state.runs_dir / NEXT_DAY / "archived.json"
    run_record.write(archived_at, replace(archived, state=State.COMMITTED, scoring=scoring))
    version, days = version_of(state), tmp_path / "own"
    (days / NEXT_DAY).mkdir(parents=True)
    rows = [f"m{number},my own message number {number}" for number in range(1_100)]
    (days / NEXT_DAY / "messages.csv").write_text("\n".join(["message_id,body", *rows]))
    environment |= {
        "TANDEM_INPUT_PATH": f"{days}/{{ds}}",
        "TANDEM_INPUT_ID": "message_id",
        "TANDEM_INPUT_TEXT": "body",
    }
    environment |= {"TRACEPARENT": f"00-{TRACE}-{TASK}-01", **collector.environment()}
    (logs := tmp_path / "logs").mkdir()
    kept = {"enabled": "true", "compress": "false", "dir": logs.as_uri()}
    environment["TANDEM_SPARK_CONF"] = " ".join(f"spark.eventLog.{name}={value}" for name, value in kept.items())
    mine, own = f"{days}/{{ds}} (body)", state.state / "inputs"
    said = succeed(cli, "plan", "--ds", NEXT_DAY)
    assert f"ds={NEXT_DAY}: 1,100 lines in 1 files of {days}/{NEXT_DAY}, release" in said
    assert f"\ninput {mine}; its scores: {own}/" in said
    scored = succeed(cli, "score", "--ds", NEXT_DAY)
    steps_are_one_trace(collector)
    [events] = logs.glob("*/events_*")
    assert "SparkListenerApplicationEnd" in events.read_text().splitlines()[-1]
    del environment["OTEL_EXPORTER_OTLP_ENDPOINT"], environment["TANDEM_SPARK_CONF"]
    for gate in ("labels", "agreement-drop"):
        assert f"gate {gate}: report-only: " in scored
    assert scored.count("no earlier day of this input is committed, so there is nothing to compare with") == 2
    # As README has it, without `publish`.
    summary = succeed(cli, "report", "--ds", NEXT_DAY)
    assert f"of ds={NEXT_DAY}: committed, not published\n" in summary
    assert f"1,100 lines in 1 files of {days}/{NEXT_DAY}; {mine}\n" in summary
    read = succeed(cli, "read", "--ds", NEXT_DAY, "--limit", "0")
    assert f"ds={NEXT_DAY} of {mine}, in {own}/" in read
    assert len([line for line in read.splitlines() if line.startswith("m")]) == 1_100
    assert version_of(state) == version
    # In another terminal, without the settings.
    for name in ("PATH", "ID", "TEXT"):
        del environment[f"TANDEM_INPUT_{name}"]
    assert f"ds={NEXT_DAY} of the default archive, {state.messages_dir}, in" in succeed(cli, "read", "--ds", NEXT_DAY)
    assert f"the newest, is of {mine}; this is run" in succeed(cli, "report", "--ds", NEXT_DAY)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["plan", "--ds", "None"], "--ds 'None': expected a day as YYYY-MM-DD; trigger the DAG"),
        (["score", "--ds", DAY], "holds no run; run `python -m batch_job plan --ds 2026-01-14` first"),
        (["publish", "--ds", DAY, "--record", "/nowhere/run.json"], "/nowhere/run.json is not there"),
        (["read", "--ds", DAY], "is no scores table"),
        (["drain", "--ds", DAY], "holds no run; run `python -m batch_job plan --ds 2026-01-14` first"),
        (["rollback", "--ds", "today"], "--ds 'today': expected a day as YYYY-MM-DD; for example --ds 2026-01-14"),
        (["rollback", "--ds", DAY], "nothing was rolled back: no epoch is live for release"),
    ],
)
def test_what_is_missing_is_named_in_one_line_with_exit_code_2(cli: Cli, arguments: list[str], problem: str) -> None:
    done = cli(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_messages_that_do_not_come_are_waited_for_then_named_with_exit_code_4(cli: Cli, state: StateSettings) -> None:
    done = cli("plan", "--ds", DAY, "--wait", "0.2")
    assert (done.returncode, done.stdout) == (4, "")
    waiting, named = done.stderr.splitlines()
    missing = (
        f"no messages: {state.messages_dir}/ds={DAY} is not a folder; write the partition, or check TANDEM_MESSAGES"
    )
    assert missing in named
    assert waiting.endswith("Waiting up to 0.2 s for them, looking every 30 s")


def test_a_missing_column_fails_within_ten_seconds_with_nothing_written(cli: Cli, state: StateSettings) -> None:
    write_day(state, [json.dumps({"id": f"m{number}", "body": "hello"}).encode() for number in range(50_000)])
    started = time.monotonic()
    done = cli("plan", "--ds", DAY)
    assert time.monotonic() - started < 10
    assert (done.returncode, done.stdout) == (2, "")
    assert "messages.jsonl has no column 'text' in any row; nothing was scored" in done.stderr
    assert not state.runs_dir.exists()
    assert not state.scores_table.exists()


def test_a_plan_says_which_type_of_ids_is_read_as_text(cli: Cli, environment: dict[str, str], tmp_path: Path) -> None:
    environment["TANDEM_INPUT_PATH"] = str(tmp_path / "{ds}")
    (tmp_path / DAY).mkdir()
    pq.write_table(pa.table({"id": [1], "text": ["hello"]}), tmp_path / DAY / "a.parquet")
    assert "\nids of type int64 are read as text\n" in succeed(cli, "plan", "--ds", DAY)


def test_a_record_of_another_day_is_refused(cli: Cli, recorded: Path) -> None:
    done = cli("publish", "--ds", NEXT_DAY, "--record", str(recorded))
    assert done.returncode == 2
    assert "is the record of ds=2026-01-14, not of ds=2026-01-15" in done.stderr


@pytest.mark.parametrize(
    ("ended", "code", "line"),
    [
        (State.PLANNED, 2, "was planned and not scored; run `python -m batch_job score --ds 2026-01-14`"),
        (State.REFUSED, 1, "run run of ds=2026-01-14: refused by the gate: labels"),
        (State.FAILED, 2, "run run of ds=2026-01-14 failed and committed nothing: ds=2026-01-14: refused by the gate"),
        (State.STALE, 3, "stale: run run of ds=2026-01-14: ds=2026-01-14: refused by the gate"),
        (State.COMMITTED, 0, ""),
    ],
)
def test_a_report_ends_as_its_run_did(
    in_process: None, recorded: Path, ended: State, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = "" if ended is State.COMMITTED else f"ds={DAY}: refused by the gate: labels"
    scoring = run_record.Scoring(1, "plan", 1, rows=10, quarantined={}) if ended is State.COMMITTED else None
    run_record.write(recorded, replace(run_record.read(recorded), state=ended, problem=problem, scoring=scoring))
    assert main(["report", "--ds", DAY]) == code
    said = capsys.readouterr()
    assert line in said.err
    assert f"of ds={DAY}: {ended}" in said.out


def test_a_report_of_the_dag_fails_where_publishing_did_not_end(
    in_process: None, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scoring = run_record.Scoring(1, "plan", 1, rows=10, quarantined={})
    run = replace(run_record.read(recorded), state=State.COMMITTED, scoring=scoring)
    run_record.write(recorded, run)
    assert main(["report", "--ds", DAY]) == 0
    assert main(["report", "--ds", DAY, "--published"]) == 2
    assert "is committed, not published: `publish` did not end;" in capsys.readouterr().err
    # It decided that a newer one stays live: nothing went wrong.
    kept_back = run_record.Publication(f"{DAY}.1", 0, moved=False, live=False, why="a newer one is")
    run_record.write(recorded, replace(run, publication=kept_back))
    assert main(["report", "--ds", DAY, "--published"]) == 0


def test_a_report_fails_on_counts_that_do_not_add_up(cli: Cli, recorded: Path) -> None:
    run = run_record.read(recorded)
    scoring = run_record.Scoring(1, "plan", 1, rows=8, quarantined={"empty": 1})
    run_record.write(recorded, replace(run, state=State.PUBLISHED, scoring=scoring))
    done = cli("report", "--ds", DAY)
    assert done.returncode == 2
    assert "10 lines in, but 8 scored and 1 quarantined" in done.stderr
    run_record.write(recorded, replace(run, state=State.PUBLISHED, scoring=replace(scoring, rows=9)))
    assert cli("report", "--ds", DAY).returncode == 0


@pytest.mark.parametrize(("variable", "who"), [("PYSPARK_DRIVER_PYTHON", "the driver"), ("PYSPARK_PYTHON", "a worker")])
def test_another_python_is_refused_with_exit_code_2(
    environment: dict[str, str], recorded: Path, tmp_path: Path, variable: str, who: str
) -> None:
    python = other_python(tmp_path / "other")
    # As spark-submit of the DAG, but with one variable that was inherited.
    spark = {**spark_submit.spark_environment({**environment, "TANDEM_RUNTIME_PREFIX": sys.prefix}), variable: python}
    done = subprocess.run(
        spark_submit.spark_submit_command(DAY, str(recorded), "local[2]"),
        env={**environment, **spark},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr[-3000:]
    # spark-submit passes on what the driver says, errors too, on its standard output.
    complaints = [line for line in done.stdout.splitlines() if line.startswith("batch_job score:")]
    assert complaints == [
        f"batch_job score: {who} runs on the Python of {tmp_path / 'other'}, "
        f"the run was planned on {sys.prefix}; set PYSPARK_PYTHON"
    ]


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    """`launch.main` in this process: for runs that end before they need Spark."""
    for name, value in environment.items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)


def launch_score(path: Path) -> int:
    return driver.main(["--ds", DAY, "--record", str(path)])


def test_a_stale_run_stays_stale_and_takes_no_token(
    in_process: None, recorded: Path, client: "redis.Redis", capsys: pytest.CaptureFixture[str]
) -> None:
    run_record.write(recorded, replace(run_record.read(recorded), state=State.STALE, token=1))
    assert launch_score(recorded) == 3
    assert capsys.readouterr().err.startswith("batch_job score: stale: run run of ds=2026-01-14 was superseded")
    assert latest_token(client, DAY) is None


def test_a_retry_after_another_run_has_begun_is_stale(
    in_process: None, recorded: Path, client: "redis.Redis", capsys: pytest.CaptureFixture[str]
) -> None:
    mine = Fence.take(client, DAY, -1)
    run_record.write(recorded, replace(run_record.read(recorded), token=mine.token))
    Fence.take(client, DAY, -1)
    assert launch_score(recorded) == 3
    assert "stale: attempt 2 at ds=2026-01-14 has begun since attempt 1" in capsys.readouterr().err
    assert run_record.read(recorded).state is State.STALE
    assert latest_token(client, DAY) == 2


def test_input_that_changed_after_planning_is_refused(
    in_process: None, recorded: Path, state: StateSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    write_day(state, [message(0, "another text")])
    assert launch_score(recorded) == 2
    assert "changed after the run was planned" in capsys.readouterr().err
    assert run_record.read(recorded).state is State.FAILED
    # A failed run has a report, too.
    assert "changed after the run was planned" in (recorded.with_suffix("") / "report.html").read_text()


def test_a_superseded_attempt_leaves_its_retrys_record_alone(
    recorded: Path, state: StateSettings, client: "redis.Redis"
) -> None:
    """Airflow may retry a run whose first driver is still alive: both write the same record."""
    Fence.take(client, DAY, -1)
    retry = Fence.take(client, DAY, -1)
    run_record.write(recorded, replace(run_record.read(recorded), token=retry.token))
    step = context.StepContext(recorded, state, NightlySettings(), DeferredSettings(), state.redis_url, client)
    context.record_failure(step, State.STALE, str(Stale("attempt 2 has begun")))
    assert run_record.read(recorded).state is State.PLANNED
    Fence.take(client, DAY, -1)
    context.record_failure(step, State.STALE, str(Stale("attempt 3 has begun")))
    assert run_record.read(recorded).state is State.STALE
