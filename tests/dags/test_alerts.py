"""An alert of a late run, on Airflow's own Python: its words, and where each type of connection sends it. A real
scheduler sends one in the stack's tests."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.sink import Sink

pytestmark = pytest.mark.heavy

REPOSITORY = Path(__file__).parents[2]
SCRIPT = """
import json, sys
from unittest import mock
from airflow.providers.smtp.hooks.smtp import SmtpHook
from dags import alerts
entered = mock.patch.multiple(SmtpHook, __enter__=lambda self: self, __exit__=lambda *_: None)
with entered, mock.patch.object(SmtpHook, "send_email_smtp") as mail:
    alerts.late(json.loads(sys.argv[1]))
print(json.dumps([call.kwargs for call in mail.call_args_list]))
"""
CONTEXT = {
    "dag_run": {
        "dag_id": "nightly_scoring",
        "dag_run_id": "manual__1+<a>",
        "partition_key": None,
        "conf": {"day": "2026-01-14"},
        "state": "running",
    },
    "deadline": {"deadline_time": "2026-01-15T06:00:00Z"},
}
FIRST = "nightly_scoring is late: the run of 2026-01-14 was due at 2026-01-15T06:00:00Z and is running."


def sent(connection: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    environ = {
        **os.environ,
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__API__BASE_URL": "https://example/airflow",
        "AIRFLOW_CONN_TANDEM_ALERTS": connection,
        "PYTHONPATH": str(REPOSITORY),
    }
    command = [str(REPOSITORY / ".venv-airflow" / "bin" / "python"), "-c", SCRIPT, json.dumps(CONTEXT)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("kind", ["slackwebhook", "http"])
def test_a_webhook_gets_the_day_the_state_and_a_link(kind: str, tmp_path: Path) -> None:
    with Sink() as sink:
        host, _, port = sink.address.removeprefix("http://").rpartition(":")
        slack = {"conn_type": kind, "host": f"{sink.address}/services", "password": "T0/B0/secret"}
        other = f"http://{host}:{port}/services/T0%2FB0%2Fsecret"
        done = sent(json.dumps(slack) if kind == "slackwebhook" else other, tmp_path)
    assert done.returncode == 0, done.stderr
    (request,) = sink.requests
    first, link = json.loads(request.body)["text"].splitlines()
    assert (request.path, first) == ("/services/T0/B0/secret", FIRST)
    assert link == "https://example/airflow/dags/nightly_scoring/runs/manual__1%2B%3Ca%3E"
    assert "secret" not in done.stdout + done.stderr


def test_a_mail_server_gets_it_with_its_first_line_as_subject(tmp_path: Path) -> None:
    connection: dict[str, Any] = {"conn_type": "smtp", "host": "mail.example", "extra": {"to": "ops@example"}}
    done = sent(json.dumps(connection), tmp_path)
    assert done.returncode == 0, done.stderr
    (mail,) = json.loads(done.stdout.splitlines()[-1])
    assert (mail["to"], mail["subject"]) == ("ops@example", FIRST)
    assert mail["html_content"].startswith(f"<pre>{FIRST}\n")


def test_without_a_connection_the_log_has_it(tmp_path: Path) -> None:
    done = sent("", tmp_path)
    assert done.returncode == 0, done.stderr
    assert FIRST in done.stdout + done.stderr


def test_a_connection_of_another_type_is_named(tmp_path: Path) -> None:
    done = sent("ftp://example", tmp_path)
    assert done.returncode != 0
    assert "tandem_alerts is of type ftp: expected slackwebhook, http, https or smtp" in done.stderr
