"""A day that is scored already starts no Spark, unless there is something for it to do."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
import redis

from batch_job import __main__ as commands
from batch_job import run_record
from batch_job.attempt import input_fingerprint
from batch_job.launch import spark_submit
from batch_job.run_record import State
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import NightlySettings
from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport, Target, write_file
from batch_job.tables import quarantined, table
from batch_job.tables.fence import Fence
from shared_model import devices
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, NEXT_DAY, Cli, message, planned, write_day
from tests.batch_job.deferred.deferring import submit_to
from tests.batch_job.shards import written


class Started(SystemExit):
    """Spark was, in place of this process; the text is its command line."""


@pytest.fixture
def path(
    state: StateSettings, client: "redis.Redis", environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The record of a run whose day is committed as it would score it; steps run in this process."""

    def start(_: str, command: list[str], __: dict[str, str]) -> None:
        raise Started(" ".join(command))

    monkeypatch.setattr(os, "execvpe", start)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    write_day(state, [message(number, "hello") for number in range(3)])
    run, nightly = planned(state, client), NightlySettings()
    options = ScoringOptions.from_settings(state, nightly, run.release, devices.detect())
    token = Fence.take(client, DAY, -1).token
    target = Target(
        str(state.scores_table), DAY, input_fingerprint(run, options, nightly.shard_rows(options.device)), token
    )
    file = FileReport(*write_file(target, schemas.SCORES, [written.batch(["hello"] * 3, ["yes"] * 3)]))
    facts = {"tandem.ds": DAY, "tandem.attempt": str(token)}
    table.replace_partition(state.scores_table, DAY, [file], token, lambda: None, facts)
    own = state.runs_dir / DAY / "run.json"
    run_record.write(own, run)
    return own


def score(*flags: str, ds: str = DAY) -> int:
    return commands.main(["score", "--ds", ds, *flags])


def test_what_is_committed_already_is_settled_without_spark(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert score() == 0
    said = capsys.readouterr().err
    assert f"ds={DAY}: unchanged; attempt 1 committed this input with this release\n" in said
    assert "0 deferred requests answered" in said
    run = run_record.read(path)
    assert run.scoring
    assert (run.state, run.scoring.token, run.scoring.rows, run.token) == (State.UNCHANGED, 1, 3, 0)
    assert json.loads((path.with_suffix("") / "report.json").read_text())["state"] == "unchanged"
    assert score() == score("--check") == 0


def test_no_jvm_is_asked_for_in_a_process_of_its_own(path: Path, cli: Cli, environment: dict[str, str]) -> None:
    environment["JAVA_HOME"] = "/nowhere"
    unchanged = cli("score", "--ds", DAY)
    assert (unchanged.returncode, unchanged.stdout) == (0, "")
    forced = cli("score", "--ds", DAY, "--force")
    assert (forced.returncode, "no /nowhere/bin/java" in forced.stderr) == (2, True)


@pytest.mark.parametrize("setting", ["TANDEM_NIGHTLY_INT8", "TANDEM_NIGHTLY_UNIT_ROWS", spark_submit.GPU_SCRIPT])
def test_spark_starts_for_other_scores_and_where_it_may_hand_out_gpus(
    path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv(setting, "1")
    with pytest.raises(Started, match=f"--ds {DAY} --record {path}$"):
        score()


def test_spark_starts_by_force_for_another_day_and_for_requests_that_wait(
    path: Path, state: StateSettings, client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Started, match=r"--force$"):
        score("--force")
    write_day(state, [message(1, "hello")], NEXT_DAY)
    run_record.write(state.runs_dir / NEXT_DAY / "run.json", planned(state, client, NEXT_DAY))
    with pytest.raises(Started):
        score(ds=NEXT_DAY)
    submit_to(state.redis_url, "my card has not arrived")
    with pytest.raises(Started):
        score()
    assert run_record.read(path).state is State.PLANNED
    monkeypatch.setenv("TANDEM_DEFERRED_DRAIN_LIMIT", "0")
    assert score() == 0


def test_a_day_whose_quarantined_lines_have_expired_is_scored_again(path: Path, state: StateSettings) -> None:
    committed, folder = table.committed(table.open_table(state.scores_table, table.SCORES), DAY), state.quarantine_table
    assert committed
    line = {"attempt": 2, "file": "a", "reason": "json", "raw": b"x", "raw_bytes": 1}
    rows = pa.RecordBatch.from_pylist([line], schema=schemas.QUARANTINE)
    lines = FileReport(*write_file(Target(str(folder), DAY, "plan", 2), schemas.QUARANTINE, [rows]))
    version = table.add_quarantined(folder, DAY, [lines], 2)
    target = Target(str(state.scores_table), DAY, committed.fingerprint, 2)
    file = FileReport(*write_file(target, schemas.SCORES, [written.batch(["hello"] * 3, ["yes"] * 3)]))
    facts = {"tandem.ds": DAY, "tandem.attempt": "2", "tandem.quarantine_version": str(version)}
    table.replace_partition(state.scores_table, DAY, [file], 2, lambda: None, facts)
    planned_record = path.read_bytes()
    assert score() == 0
    assert run_record.read(path).state is State.UNCHANGED
    assert quarantined.expire(folder, datetime.now(UTC) + timedelta(seconds=1)) == 1
    path.write_bytes(planned_record)
    with pytest.raises(Started):
        score()


def test_a_redis_that_does_not_answer_is_for_the_run_to_report(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_REDIS_URL", "redis://127.0.0.1:1")
    with pytest.raises(Started):
        score()


def test_what_may_not_be_scored_fails_without_spark(
    path: Path, state: StateSettings, client: "redis.Redis", capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_record.read(path)
    run_record.write(path, replace(run, token=1))
    Fence.take(client, DAY, -1)
    assert score() == 3
    assert "stale: attempt 2 at ds=2026-01-14 has begun since attempt 1" in capsys.readouterr().err
    assert run_record.read(path).state is State.STALE
    run_record.write(path, run)
    write_day(state, [message(0, "another text")])
    assert score() == 2
    assert "changed after the run was planned" in capsys.readouterr().err
    assert run_record.read(path).state is State.FAILED
    assert "changed after the run was planned" in (path.with_suffix("") / "report.html").read_text()


def test_airflow_asks_with_the_runtimes_python(path: Path, environment: dict[str, str]) -> None:
    """An exit code of its own says that Spark is needed."""

    def look(record: Path, **settings: str) -> int:
        own = {**environment, **settings, "TANDEM_RUNTIME_PREFIX": sys.prefix}
        return subprocess.run(
            spark_submit.step_command("score", DAY, str(record), own), env=own, check=False
        ).returncode

    assert look(path) == 0
    assert run_record.read(path).state is State.UNCHANGED
    assert look(path, TANDEM_NIGHTLY_INT8="1") == spark_submit.CHANGED
    assert look(path.with_name("none.json")) == spark_submit.CHANGED
