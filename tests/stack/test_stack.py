"""What the local stack tells the tasks that Airflow starts."""

import os
import subprocess
from pathlib import Path

import pytest
from tandem_stack import stack
from tandem_stack.uv import ROOT

from shared_model.settings import StateSettings


def test_executors_leave_the_cores_to_the_service_beside_them_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = stack.plan(StateSettings(state=tmp_path), scheduled=False)
    monkeypatch.delenv("TANDEM_NIGHTLY_IDLE", raising=False)
    assert stack._task_environ(plan)["TANDEM_NIGHTLY_IDLE"] == "true"
    monkeypatch.setenv("TANDEM_NIGHTLY_IDLE", "false")
    assert stack._task_environ(plan)["TANDEM_NIGHTLY_IDLE"] == "false"


def test_only_what_is_kept_running_is_scheduled(tmp_path: Path) -> None:
    for scheduled in (False, True):
        airflow = stack.plan(StateSettings(state=tmp_path), scheduled=scheduled).airflow
        assert airflow.environ({}, {})["AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE"] == str(scheduled)


@pytest.mark.heavy
def test_a_database_that_another_process_writes_to_is_waited_for(tmp_path: Path) -> None:
    """Longer than SQLite's own 5 s, by all of Airflow's connections."""
    airflow = stack.plan(StateSettings(state=tmp_path), scheduled=False).airflow
    airflow.home.mkdir(parents=True)
    asks = "conn.execute(sqlalchemy.text('PRAGMA busy_timeout'))"
    program = f"""
import asyncio, sqlalchemy
from airflow import settings
async def asked():
    async with settings.async_engine.connect() as conn:
        return (await {asks}).scalar()
with settings.engine.connect() as conn:
    print("ms:", {asks}.scalar(), asyncio.run(asked()))
"""
    python, environ = ROOT / ".venv-airflow/bin/python", airflow.environ(os.environ, {})
    done = subprocess.run([python, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert "ms: 60000 60000" in done.stdout


def test_tasks_are_spans_where_spans_have_a_collector(tmp_path: Path) -> None:
    airflow = stack.plan(StateSettings(state=tmp_path), scheduled=False).airflow
    names = ("AIRFLOW__TRACES__OTEL_ON", "OTEL_TRACES_EXPORTER")
    traced = airflow.environ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, {})
    assert [traced[it] for it in names] == ["True", "otlp_proto_http"]
    assert not set(names) & set(airflow.environ({}, {}))
