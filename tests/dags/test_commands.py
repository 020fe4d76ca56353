"""Tasks of DAGs that are not about one night end as their commands do, on Airflow's own Python."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batch_job import command_line
from batch_job.launch import commands
from shared_model import __main__ as shared_model
from shared_model.commands import watch
from tests.dags.test_all_dags import PYTHON, REPOSITORY

pytestmark = pytest.mark.heavy

RELEASE = "one-0123456789ab"
PARSERS = {"shared_model": shared_model.parser, "batch_job": command_line.parser}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    environ = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow")),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": str(REPOSITORY),
        "TANDEM_RUNTIME_PREFIX": sys.prefix,
    }
    command = [str(PYTHON), str(Path(__file__).with_name("inspect_commands.py")), str(REPOSITORY / "dags")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_the_drain_is_skipped_where_nothing_waits_and_gets_the_run_where_something_does(tasks: dict[str, Any]) -> None:
    found = {"line": "3 wait", "ds": "2026-01-14", "record": "/r.json"}
    assert tasks["check"] == {
        "0": ["skipped", "3 wait"],
        "2": [2, "its line"],
        "5": ["done", found],
        "75": [75, "its line"],
    }
    assert tasks["command"] == ["-m", "batch_job", "drain", "--check", "--json"]


def test_a_drain_that_fails_says_its_line_and_no_code_passes_for_success(tasks: dict[str, Any]) -> None:
    drain = tasks["drain"]
    assert drain["args"][-2:] == ["--drain", "--active"]
    # The form's limit is a setting of the step.
    assert drain["done"] == ["done", "7"]
    # A gate's code means that to the nightly run alone.
    assert drain["refused"] == [1, "batch_job drain: a line"]
    assert drain["gone"] == [75, "batch_job drain: Redis did not answer"]
    assert tasks["night"]


def test_steps_and_drivers_continue_the_trace_of_their_task(tasks: dict[str, Any]) -> None:
    without, of_task, step, driver = tasks["traced"]
    assert without == ""
    assert of_task.startswith("00-")
    assert step == driver == of_task


def test_drift_is_measured_as_the_form_says_and_fails_with_its_line(tasks: dict[str, Any]) -> None:
    given = ["-m", "batch_job", "drift"]
    flags = ["--to=2026-01-14", "--model=side", "--days=7", "--days=30"]
    assert tasks["drift"] == {
        "all": [["done"], [*given, *flags]],
        "moved": [[1, "its line"], [*given, "--days=7"]],
    }


def test_a_backfill_lets_a_nightly_run_go_first_and_goes_on_later_as_the_same_try(tasks: dict[str, Any]) -> None:
    backfill = tasks["backfill"]
    flags = ["--from=2026-01-01", "--to=2026-01-07", "--run=manual__1", "--force"]
    given = [*flags, f"--prefix={sys.prefix}", "side"]
    assert backfill["done"] == {
        "look": ["-m", "batch_job", "score", *flags, "--check"],
        "ended": "done",
        "spark": given,
    }
    later = ["later", commands.YIELD_SECONDS]
    assert [backfill["due"][it] for it in ("ended", "spark")] == [later, None]
    assert [backfill["yielded"][it] for it in ("ended", "spark")] == [later, given]
    assert [backfill["wrong"][it] for it in ("ended", "spark")] == [[2, "the line of the look"], None]
    assert [backfill["refused"][it] for it in ("ended", "spark")] == [[1, "the last line"], given]


def test_a_canary_is_promoted_rolled_back_with_the_reason_or_left_alone(tasks: dict[str, Any]) -> None:
    release, watched = "{{ params.release }}", "--minutes={{ params.minutes }}"
    found = tasks["release"]
    assert found["canary"] == [
        [None, ["canary", release, "--weight=0.1"]],
        [None, ["canary", release, "--weight=0.1", "--default"]],
    ]
    arguments = ["watch", release, watched, "--calls={{ params.calls }}"]
    assert found["watch"] == {
        "0": ["promote", arguments, []],
        "2": [[2, "its line"], arguments, []],
        # Redis was not reached, which for a step is another code: one that is tried again.
        "3": [[75, "its line"], arguments, []],
        "4": [[4, "its line"], arguments, []],
        "5": ["roll_back", arguments, ["its line"]],
    }
    assert (commands.WORSE, 4) == (watch.WORSE, watch.UNDECIDED)
    assert found["roll_back"] == {"0": [1, "rolled back: 5% failed"], "2": [2, "its line"], "3": [75, "its line"]}
    assert found["promote"][:2] == [[75, "its line"], ["promote", release, "--canary", "--wait"]]


@pytest.mark.parametrize(
    ("task", "package", "said"),
    [
        ("verify", "shared_model", {"command": "verify", "release": RELEASE}),
        ("gate", "shared_model", {"command": "gate", "named": RELEASE}),
        ("canary", "shared_model", {"command": "canary", "release": RELEASE, "weight": 0.25, "default": True}),
        ("watch", "shared_model", {"command": "watch", "release": RELEASE, "minutes": 0.5, "calls": 30}),
        ("promote", "shared_model", {"command": "promote", "release": RELEASE, "canary": True, "wait": 120.0}),
        ("roll_back", "shared_model", {"command": "rollback", "canary": RELEASE}),
        ("check", "batch_job", {"step": "drain", "check": True, "json": True}),
        ("measure", "batch_job", {"step": "drift", "to": "2026-01-14", "days": [7, 30], "model": "side"}),
        ("expire", "batch_job", {"step": "housekeeping"}),
    ],
)
def test_a_package_understands_what_a_task_tells_it(
    tasks: dict[str, Any], task: str, package: str, said: dict[str, object]
) -> None:
    found, *arguments = tasks["lines"][task]
    assert found == package
    read = vars(PARSERS[package]().parse_args(arguments))
    assert {name: read[name] for name in said} == said


def test_what_would_end_in_the_same_way_is_never_tried_again_and_all_else_after_a_wait(tasks: dict[str, Any]) -> None:
    final = {code: ["fail", None] for code in "1234"}
    passing = {code: ["retry", 30.0] for code in ("70", "75", "-9", "137")}
    assert tasks["retried"] == {**final, **passing}
    assert tasks["lost"] == ["retry", 30.0]


def test_waits_grow_to_a_bound(tasks: dict[str, Any]) -> None:
    assert tasks["waits"] == [30.0, 60.0, 120.0, commands.MOST_RETRY_SECONDS, commands.MOST_RETRY_SECONDS]
