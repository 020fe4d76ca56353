"""Every DAG keeps the rules that the scheduler and people rely on: parsed on Airflow's own Python."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batch_job.launch import commands

pytestmark = pytest.mark.heavy

REPOSITORY = Path(__file__).parents[2]
PYTHON = REPOSITORY / ".venv-airflow" / "bin" / "python"
DAGS = ["backfill_scoring", "drain_deferred", "drift", "housekeeping", "nightly_scoring", "release_model"]
FILES = {f"{name}.py": name for name in DAGS}
SPAN: dict[str, object] = {"from": "2026-01-01", "to": "2026-01-07"}
#: Values that the trigger form must refuse.
REFUSED: dict[str, list[dict[str, object]]] = {
    "backfill_scoring": [
        {},
        {"from": "2026-01-14"},
        {"from": "Monday", "to": "2026-01-14"},
        {**SPAN, "publish": "yes"},
        {**SPAN, "model": "no/name"},
    ],
    "drain_deferred": [{"limit": 0}, {"limit": "many"}, {"limit": 1.5}],
    "drift": [{"to": "Monday"}, {"days": []}, {"days": [0]}, {"days": 7}, {"model": 3}, {"model": "no/name"}],
    "housekeeping": [],
    "nightly_scoring": [{"day": "14 January"}, {"force": "yes"}, {"accept": ["finite"]}],
    "release_model": [
        {},
        {"release": "no/release"},
        {"release": "--default"},
        {"release": "one", "weight": 1},
        {"release": "one", "weight": 0},
        {"release": "one", "minutes": 0},
        {"release": "one", "calls": 0},
    ],
}
#: And values that it must take.
TAKEN: dict[str, list[dict[str, object]]] = {
    "backfill_scoring": [SPAN, {**SPAN, "model": None, "force": True, "publish": True}],
    "drain_deferred": [{}, {"limit": 1}, {"limit": None}],
    "drift": [{}, {"to": "2026-01-14", "days": [7], "model": "side"}, {"to": None, "model": None}],
    "housekeeping": [{}],
    "nightly_scoring": [{}, {"day": "2026-01-14", "force": True, "accept": ["labels"]}],
    "release_model": [
        {"release": "one-0123456789ab"},
        {"release": "@previous:side", "weight": 0.5, "minutes": 0.5, "calls": 1, "default": True},
    ],
}


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    assert PYTHON.exists(), f"{PYTHON} is missing: `make setup` installs it"
    environ = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow")),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": str(REPOSITORY),
        "TANDEM_RUNTIME_PREFIX": sys.prefix,
    }
    tries = {name: [*REFUSED[name], *TAKEN[name]] for name in DAGS}
    command = [str(PYTHON), str(Path(__file__).with_name("inspect_dags.py")), str(REPOSITORY / "dags")]
    done = subprocess.run([*command, json.dumps(tries)], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def dag(files: dict[str, Any], request: pytest.FixtureRequest) -> dict[str, Any]:
    (found,) = (file["dags"][request.param] for file in files.values() if request.param in file["dags"])
    return dict(found)


each_dag = pytest.mark.parametrize("dag", DAGS, indirect=True)


def test_every_file_gives_its_dag_and_no_error(files: dict[str, Any]) -> None:
    assert {name: list(file["dags"]) for name, file in files.items()} == {name: [it] for name, it in FILES.items()}
    assert {name: file["errors"] for name, file in files.items()} == {name: [] for name in FILES}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_within_a_second_of_cpu_and_imports_no_runtime(files: dict[str, Any], name: str) -> None:
    file = files[name]
    assert file["seconds"] <= 1.0
    loaded = {module.partition(".")[0] for module in file["loaded"]}
    assert loaded.isdisjoint({"pyspark", "deltalake", "torch", "openvino", "redis", "shared_model", "protos"})
    ours = {module for module in file["loaded"] if module.startswith("batch_job.")}
    assert {module for module in ours if not module.startswith("batch_job.launch")} == set()


@pytest.mark.parametrize("name", FILES)
def test_a_second_reading_makes_no_new_version(files: dict[str, Any], name: str) -> None:
    assert files[name]["again"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_thin(name: str) -> None:
    assert len((REPOSITORY / "dags" / name).read_text().splitlines()) < 80


@each_dag
def test_it_is_described_owned_tagged_and_paused_at_creation(dag: dict[str, Any]) -> None:
    assert dag["description"]
    assert len(dag["doc"].split()) > 40
    assert "tandem" in dag["tags"]
    assert (dag["paused"], dag["catchup"]) == (True, False)
    assert {task["owner"] for task in dag["tasks"].values()} == {"tandem"}
    assert {task["policy"] for task in dag["tasks"].values()} == {"OnlyUnexpected"}


@each_dag
def test_each_task_says_what_it_does_and_what_to_do_when_it_fails(dag: dict[str, Any]) -> None:
    docs = {name: task["doc"] for name, task in dag["tasks"].items() if name != "complete"}
    assert [name for name, said in docs.items() if "**When it fails**" not in (said or "")] == []


@each_dag
def test_each_param_is_typed_and_described(dag: dict[str, Any]) -> None:
    params = dag["params"]
    assert [name for name, it in params.items() if not it["description"] or not it["schema"].get("type")] == []


@pytest.mark.parametrize("name", DAGS)
def test_the_form_refuses_what_is_invalid_and_nothing_else(files: dict[str, Any], name: str) -> None:
    (dag,) = (file["dags"][name] for file in files.values() if name in file["dags"])
    assert dag["refused"] == REFUSED[name]


def test_the_drain_looks_every_quarter_of_an_hour_one_run_at_a_time(files: dict[str, Any]) -> None:
    drain, night = (files[f"{name}.py"]["dags"][name] for name in ("drain_deferred", "nightly_scoring"))
    assert (drain["schedule"], drain["max_active_runs"]) == ("*/15 * * * *", 1)
    assert drain["tasks"]["check"]["downstream"] == ["drain"]
    # Where both wait for the device, the night goes first.
    pools = {name: task["pool"] for name, task in drain["tasks"].items()}
    assert pools == {"check": "default_pool", "drain": commands.DEVICE_POOL}
    assert drain["tasks"]["drain"]["priority"] < night["tasks"]["score"]["priority"]


def test_a_backfill_is_started_by_people_and_takes_the_device_after_a_night(files: dict[str, Any]) -> None:
    backfill, night = (files[f"{name}.py"]["dags"][name] for name in ("backfill_scoring", "nightly_scoring"))
    assert backfill["schedule"] is None
    task = backfill["tasks"]["score"]
    assert task["pool"] == commands.DEVICE_POOL
    assert task["priority"] < night["tasks"]["score"]["priority"]
