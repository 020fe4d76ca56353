"""What the local stack tells the tasks that Airflow starts."""

from pathlib import Path

import pytest
from tandem_stack import stack

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


def test_tasks_are_spans_where_spans_have_a_collector(tmp_path: Path) -> None:
    airflow = stack.plan(StateSettings(state=tmp_path), scheduled=False).airflow
    names = ("AIRFLOW__TRACES__OTEL_ON", "OTEL_TRACES_EXPORTER")
    traced = airflow.environ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, {})
    assert [traced[it] for it in names] == ["True", "otlp_proto_http"]
    assert not set(names) & set(airflow.environ({}, {}))
