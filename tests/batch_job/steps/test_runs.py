"""`runs` lists every record, damaged ones too; `quarantine` prints the lines of the day's latest attempt."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from batch_job import run_record
from batch_job.identity import Tables
from batch_job.run_record import State
from batch_job.shards import quarantining, schemas
from batch_job.shards.shard_files import FileReport, Target, write_file
from batch_job.steps import quarantine
from batch_job.steps import runs as listing
from batch_job.tables import table
from shared_model.errors import JobError
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, Cli
from tests.batch_job.test_run_record import FINDINGS, PLANNED, SCORING

RUNS = [
    replace(PLANNED, ds="2026-01-13", run_id="older", planned_at="2026-01-14T02:00:00+00:00"),
    replace(
        PLANNED, run_id="failed", planned_at="2026-01-15T02:00:00+00:00", state=State.FAILED, problem="no java", token=2
    ),
    replace(
        PLANNED,
        run_id="done",
        planned_at="2026-01-15T03:00:00+00:00",
        state=State.PUBLISHED,
        scoring=SCORING,
        findings=FINDINGS,
        token=3,
    ),
]


@pytest.fixture
def runs(state: StateSettings) -> Path:
    for run in RUNS:
        run_record.write(state.runs_dir / run.ds / f"{run.run_id}.json", run)
    # A run's own folder holds its report, which is no run.
    (state.runs_dir / DAY / "done").mkdir()
    (state.runs_dir / DAY / "done" / "report.json").write_text("{}")
    return state.runs_dir


def write_quarantined(tables: Tables, attempt: int, lines: Sequence[tuple[str, bytes]], day: str = DAY) -> None:
    reasons, raw = zip(*lines, strict=True)
    read = pa.RecordBatch.from_pydict({"file": ["a.csv"] * len(lines), "reason": reasons, "raw": raw})
    target = Target(str(tables.quarantine), day, "plan", attempt, source="")
    file = FileReport(*write_file(target, schemas.QUARANTINE, [quarantining.quarantine_rows(read, attempt)]))
    table.add_quarantined(tables.quarantine, day, [file], attempt)


@pytest.fixture
def tables(state: StateSettings) -> Tables:
    """Two attempts at a day, of which the second is the latest, and one at another."""
    found = Tables.for_input(state)
    write_quarantined(found, 1, [("empty", b"")])
    write_quarantined(found, 2, [("bad_json", b'{"a\tb'), ("bad_encoding", b"\xff ok"), ("too_long", b"x" * 5000)])
    write_quarantined(found, 9, [("empty", b"")], day="2026-01-15")
    return found


def test_the_newest_run_comes_first_and_each_line_says_what_came_of_it(runs: Path) -> None:
    found = [json.loads(line) for line in listing.runs(runs, "", 0, as_json=True)]
    assert [(run["day"], run["run"], run["status"], run["rows"], run["quarantined"]) for run in found] == [
        (DAY, "done", "published", 2, 1),
        (DAY, "failed", "failed", None, None),
        ("2026-01-13", "older", "planned", None, None),
    ]
    assert [run["verdict"] for run in found] == ["labels fail (accepted), agreement unproven", "no java", ""]
    assert {run["input"] for run in found} == {"/data/ds=2026-01-14"}


def test_a_table_is_aligned_for_people(runs: Path) -> None:
    heading, *lines = listing.runs(runs, DAY, 0, as_json=False)
    assert heading.split() == ["day", "run", "status", "rows", "quarantined", "planned", "input", "verdict"]
    assert len(lines) == 2
    assert {line.index("/data") for line in lines} == {heading.index("input")}
    assert [line.split()[3:5] for line in lines] == [["2", "1"], ["-", "-"]]


def test_a_day_and_a_limit_leave_runs_out(runs: Path) -> None:
    assert len(list(listing.runs(runs, "2026-01-13", 0, as_json=True))) == 1
    assert len(list(listing.runs(runs, "", 2, as_json=True))) == 2
    with pytest.raises(JobError, match=r"ds?.*2026-01-12 holds no run; run `python -m batch_job plan` first, or check"):
        listing.runs(runs, "2026-01-12", 0, as_json=True)


def test_a_document_has_model_rate_cost_and_every_gate(runs: Path) -> None:
    done, failed, _ = (json.loads(line) for line in listing.runs(runs, "", 0, as_json=True, price_per_hour=0.9))
    assert (done["model"], done["release"], done["rows_per_second"]) == ("name", "name-0123456789ab", 12.5)
    assert done["cost_per_million"] == pytest.approx(20.0)
    assert done["gates"] == [
        {"gate": "counts", "outcome": "ok", "accepted": False},
        {"gate": "labels", "outcome": "fail", "accepted": True},
        {"gate": "agreement", "outcome": "unproven", "accepted": False},
    ]
    assert (failed["rows_per_second"], failed["cost_per_million"], failed["gates"]) == (None, None, [])


def test_of_many_runs_the_records_that_changed_last_are_read_and_no_other(runs: Path) -> None:
    (runs / DAY / "broken.json").write_text("{")
    for age, path in enumerate(("2026-01-13/older", f"{DAY}/failed", f"{DAY}/done", f"{DAY}/broken")):
        os.utime(runs / f"{path}.json", (age, age))
    found = [json.loads(line)["run"] for line in listing.runs(runs, "", 3, as_json=True)]
    assert sorted(found) == ["broken", "done", "failed"]


def test_a_damaged_record_is_listed_as_one(runs: Path) -> None:
    (runs / DAY / "broken.json").write_text("{")
    found = {run["run"]: run for run in map(json.loads, listing.runs(runs, "", 0, as_json=True))}
    assert len(found) == 4
    assert found["broken"]["status"] == "unreadable"
    assert "broken.json cannot be read as a run record" in found["broken"]["verdict"]


def test_lines_of_the_latest_attempt_are_printed_each_in_one_line(
    tables: Tables, state: StateSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    heading, *lines = quarantine.quarantine(state, DAY, 0, as_json=False)
    assert heading.split("\t") == ["reason", "file", "raw"]
    assert lines[:2] == ['bad_json\ta.csv\t{"a\\tb', "bad_encoding\ta.csv\t\\xff ok"]
    assert lines[2] == f"too_long\ta.csv\t{'x' * quarantining.RAW_KEPT}… (5,000 bytes)"
    said = f"ds={DAY}: attempt 2 quarantined 3 lines (bad_encoding 1, bad_json 1, too_long 1)"
    assert capsys.readouterr().err.endswith(f"{said}\n")
    assert len(list(quarantine.quarantine(state, DAY, 2, as_json=False))) == 3
    [first] = quarantine.quarantine(state, DAY, 1, as_json=True)
    assert json.loads(first) == {"reason": "bad_json", "file": "a.csv", "raw": '{"a\tb', "raw_bytes": 5}


def test_a_later_attempt_without_a_quarantined_line_has_none_to_print(
    tables: Tables, state: StateSettings, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(quarantine.quarantine(state, DAY, 0, as_json=True)) == []
    assert capsys.readouterr().err.endswith(f"ds={DAY}: attempt 3 quarantined no line\n")


def test_a_day_that_was_never_scored_is_named(state: StateSettings) -> None:
    with pytest.raises(JobError, match=f"ds={DAY} was never scored: .*quarantine knows no attempt at it"):
        quarantine.quarantine(state, DAY, 0, as_json=False)


def test_the_commands_print_them(cli: Cli, runs: Path, tables: Tables) -> None:
    listed, printed = cli("runs", "--ds", DAY), cli("quarantine", "--ds", DAY, "--limit", "1")
    assert (listed.returncode, printed.returncode) == (0, 0)
    assert [line.split()[1] for line in listed.stdout.splitlines()] == ["run", "done", "failed"]
    assert printed.stdout == "reason\tfile\traw\n"
    assert "attempt 3 quarantined no line" in printed.stderr
    none = cli("quarantine", "--ds", "2026-01-01")
    assert (none.returncode, len(none.stderr.splitlines())) == (2, 1)


def test_a_reader_that_has_enough_gets_no_complaint(
    state: StateSettings, tables: Tables, environment: dict[str, str]
) -> None:
    write_quarantined(tables, 4, [("bad_json", b"no JSON " * 100)] * 5000)
    command = [sys.executable, "-m", "batch_job", "quarantine", "--ds", DAY, "--limit", "0"]
    done = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout
    assert done.stderr
    assert done.stdout.readline().startswith(b"reason\t")
    done.stdout.close()
    assert (len(done.stderr.read().splitlines()), done.wait(60)) == (1, 0)
    done.stderr.close()
