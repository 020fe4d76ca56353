"""Exit codes: every kind of failure has its code and one line, an unexpected error a code of its own."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from batch_job import __main__ as steps
from batch_job import run_record
from batch_job.launch import exit_codes, spark_submit
from batch_job.run_record import State
from batch_job.scoring.options import ScoringOptions
from batch_job.spark import session
from batch_job.spark.failures import failing_in_one_line
from shared_model.errors import JobError, NoInput, Refused, SettingError, Stale, StoreUnavailable, WorkersLost
from shared_model.objects import url
from shared_model.settings import StateSettings
from tests import object_store
from tests.batch_job.cluster import other_python
from tests.batch_job.conftest import DAY, Cli, attempt, planned
from tests.batch_job.reporting.test_reporting import PUBLISHED
from tests.batch_job.shards import written
from tests.object_store import Fault, Proxy
from tests.shared_model.full_disk import largest_file


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (Stale("attempt 2 has begun"), 3, "batch_job score: stale: attempt 2 has begun\n"),
        (Refused("labels drifted"), 1, "batch_job score: labels drifted\n"),
        (JobError("counts differ"), 2, "batch_job score: counts differ\n"),
        (NoInput("no messages"), 4, "batch_job score: no messages\n"),
        (StoreUnavailable("Redis did not answer"), 75, "batch_job score: Redis did not answer\n"),
        (WorkersLost("a worker was killed"), 75, "batch_job score: a worker was killed\n"),
        (SettingError("TANDEM_STORE=x"), 2, "batch_job score: TANDEM_STORE=x\n"),
        (run_record.RecordError("run.json is not there"), 2, "batch_job score: run.json is not there\n"),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(
    error: Exception, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    assert exit_codes.exit_code("score", fail) == code
    assert capsys.readouterr().err == line


def test_what_nobody_foresaw_is_no_verdict_of_a_gate_and_is_not_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_codes.exit_code("score", lambda: 1 // 0) == 70
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "Traceback (most recent call last):"
    assert last == (
        "batch_job score: unexpected error: ZeroDivisionError: integer division or modulo by zero; "
        "the traceback above says where"
    )


def test_a_store_that_is_gone_is_one_line_and_worth_another_try(
    s3_url: str, s3: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And one that refuses is not."""
    monkeypatch.setitem(url.RETRIES, "max_retries", 1)
    object_store.reconnect()
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path))
    monkeypatch.setenv("TANDEM_STORE", s3_url)
    s3.inject(Fault.BUSY, 100, "GET")
    assert steps.main(["runs"]) == spark_submit.UNAVAILABLE
    (line,) = [it for it in capsys.readouterr().err.splitlines() if it.startswith("batch_job")]
    assert line.startswith(f"batch_job runs: {s3_url}/runs cannot be read: SlowDown: ")
    s3.clear()
    s3.expire()
    assert steps.main(["runs"]) == 2
    assert "ExpiredToken" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)", WorkersLost),
        ("ExecutorLostFailure (executor 1 exited caused by one of the running tasks)", WorkersLost),
        ("shared_model.errors.EngineLost: rank 1 died", WorkersLost),
        ("shared_model.errors.JobError: counts differ", JobError),
        ("java.io.IOException: No space left on device", JobError),
    ],
)
def test_lost_workers_are_told_from_work_that_fails(said: str, kind: type[Exception]) -> None:
    with pytest.raises(JobError) as caught, failing_in_one_line():
        raise PySparkException(f"Job aborted due to stage failure: Task 0 failed\n{said}\n")
    assert type(caught.value) is kind


@pytest.mark.parametrize("said", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("no answer")])
def test_a_jvm_that_is_gone_is_said(said: Exception) -> None:
    with (
        pytest.raises(WorkersLost, match="Spark was stopped or killed; what it had finished is kept"),
        failing_in_one_line(),
    ):
        raise said


@pytest.mark.heavy
def test_so_it_ends_a_process() -> None:
    code = "from batch_job.launch import exit_codes; raise SystemExit(exit_codes.exit_code('score', lambda: 1 // 0))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 70


def test_a_disk_that_may_not_be_written_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def write() -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "table"))

    assert exit_codes.exit_code("score", write) == 2
    problem = f"{tmp_path}/table: Permission denied; make room, or give this user the right to it"
    assert capsys.readouterr().err == f"batch_job score: {problem}\n"


@pytest.mark.heavy
def test_output_that_nobody_can_take_is_one_line() -> None:
    """Python itself would end with 120, and complain twice."""
    code = "from batch_job.launch.exit_codes import exit_code as end; raise SystemExit(end('read', lambda: print(1)))"
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], env=buffered, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith("batch_job read: output: No space left on device; make room")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("JAVA_HOME", "/nowhere", "no /nowhere/bin/java that can be run, PATH being "),
        ("TANDEM_SPARK_MASTER", "mesos://host", "TANDEM_SPARK_MASTER='mesos://host': expected local[…], spark://"),
    ],
)
@pytest.mark.parametrize("step", ["score", "drain"])
def test_a_spark_that_cannot_be_started_is_one_line(
    cli: Cli, environment: dict[str, str], step: str, variable: str, value: str, problem: str
) -> None:
    """spark-submit would end with 1."""
    environment[variable] = value
    done = cli(step, "--ds", DAY, "--record", "/nowhere/run.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"batch_job {step}: {problem}")
    assert len(done.stderr.splitlines()) == 1


def test_a_python_without_spark_submit_is_one_line(environment: dict[str, str], tmp_path: Path) -> None:
    own = {**environment, "PATH": "/nowhere", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [other_python(tmp_path / "other"), "-m", "batch_job", "score", "--ds", DAY, "--record", "/nowhere"]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    path = f"{tmp_path}/other/bin:/nowhere"
    problem = f"no spark-submit that can be run, PATH being {path}; install pyspark beside this Python"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"batch_job score: {problem}\n")


@pytest.fixture
def parquet_day(state: StateSettings, client: "redis.Redis") -> Path:
    """The one file of a planned day, its pages as they are and under checksums."""
    file = state.messages_dir / f"ds={DAY}" / "a.parquet"
    file.parent.mkdir(parents=True)
    rows = pa.table({"id": [f"m{number}" for number in range(100)], "text": ["hello"] * 100})
    pq.write_table(rows, file, compression="none", use_dictionary=False, write_page_checksum=True)
    run_record.write(state.runs_dir / DAY / "run.json", planned(state, client))
    return file


def complaints(done: "subprocess.CompletedProcess[str]") -> list[str]:
    """The last lines of a step. spark-submit copies the driver's output, errors too, to its standard output."""
    assert "Traceback" not in done.stdout
    return [line for line in done.stdout.splitlines() if line.startswith("batch_job")]


def test_a_page_that_was_damaged_since_is_named_in_one_line(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    parquet_day: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    parquet_day.write_bytes(parquet_day.read_bytes().replace(b"m50", b"n50", 1))
    run = run_record.read(state.runs_dir / DAY / "run.json")
    assert exit_codes.exit_code("score", lambda: attempt(spark, state, client, options, run)) == 2
    [line] = [it for it in capsys.readouterr().err.splitlines() if it.startswith("batch_job")]
    assert line.startswith(f"batch_job score: {parquet_day} cannot be read: ")
    assert line.endswith("CRC checksum verification failed; restore it, or plan the run anew")


@pytest.mark.parametrize(
    ("master", "why"),
    [
        ("local[x]", "org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'"),
        # Spark tries for a minute.
        pytest.param("spark://127.0.0.1:1", "no master there took the job", marks=pytest.mark.proof),
    ],
)
def test_a_spark_that_does_not_start_is_one_line(
    cli: Cli, environment: dict[str, str], parquet_day: Path, master: str, why: str
) -> None:
    environment["TANDEM_SPARK_MASTER"] = master
    done = cli("score", "--ds", DAY)
    [line] = complaints(done)
    assert done.returncode == 2
    assert line.startswith(f"batch_job score: Spark did not start on {master}: {why}; check that address")


def test_a_master_that_does_not_answer_is_told_from_what_spark_says() -> None:
    """Its own words, shortened, once it has tried for a minute; the proof above has it from Spark."""
    text = """An error occurred while calling None.org.apache.spark.sql.classic.SparkSession.
: java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.
This stopped SparkContext was created at:

org.apache.spark.api.java.JavaSparkContext.<init>(JavaSparkContext.scala:59)
\tat org.apache.spark.SparkContext.assertNotStopped(SparkContext.scala:128)
"""
    line = session.no_session("spark://h:7077", text)
    assert line.startswith("Spark did not start on spark://h:7077: no master there took the job; check that address")


def test_a_damaged_log_of_the_scores_is_one_line(cli: Cli, state: StateSettings) -> None:
    written.commit(state.scores_table, DAY, ["yes"])
    (state.scores_table / "_delta_log" / f"{1:020d}.json").write_bytes(b"{")
    done = cli("read", "--ds", DAY)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"batch_job read: {state.scores_table} cannot be read as a Delta table: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def recorded(state: StateSettings, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A published run's record, in the state that steps in this process work on."""
    monkeypatch.setenv("TANDEM_STATE", str(state.state))
    state.state.mkdir(mode=0o700)
    path = state.runs_dir / DAY / "run.json"
    run_record.write(path, replace(PUBLISHED, ds=DAY, state=State.PUBLISHED))
    return path


def test_a_report_for_which_there_is_no_room_is_one_line(
    recorded: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # An embedded Redis would have no room for its log either.
    monkeypatch.setenv("TANDEM_REDIS_URL", redis_url)
    with largest_file(1000):
        assert steps.main(["report", "--ds", DAY]) == 2
    said = capsys.readouterr()
    page = recorded.with_suffix("") / "report.html"
    problem = f"{page} could not be written: File too large; make room, then run `report` again"
    assert said.err == f"batch_job report: {problem}\n"
    # The summary is printed all the same, and no unfinished file is left.
    assert "committed" in said.out
    assert not list(page.parent.iterdir())
    assert steps.main(["report", "--ds", DAY]) == 0
