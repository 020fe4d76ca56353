"""The command lines by which Airflow's environment reads records."""

import pytest

from batch_job.launch import records

STORE = {"TANDEM_RUNTIME_PREFIX": "/opt/tandem", "TANDEM_STORE": "s3://bucket/tandem/"}


def test_runs_are_read_by_the_runtimes_python_and_are_not_too_many() -> None:
    python = ["/opt/tandem/bin/python", "-m", "batch_job"]
    assert records.runs_command(STORE) == [*python, "runs", "--json", "--limit", "100"]


@pytest.mark.parametrize("run", ["manual__1:2+3", "<img src=x>", "a b; rm -rf ~", "--help"])
def test_a_report_is_read_where_the_runs_record_is_whatever_its_name(run: str) -> None:
    *_, flag, ds, day, record, path = records.page_command("2026-01-14", run, STORE)
    assert (flag, ds, day, record) == ("--page", "--ds", "2026-01-14", "--record")
    assert path == f"s3://bucket/tandem/runs/2026-01-14/{run}.json"
