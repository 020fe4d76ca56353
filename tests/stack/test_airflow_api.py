"""Calls of Airflow that are made again, against a scripted server."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from tandem_stack import airflow_api
from tandem_stack.airflow_api import AirflowApi
from tandem_stack.checks import Problem


@contextlib.contextmanager
def airflow(*codes: int) -> Iterator[tuple[AirflowApi, list[str]]]:
    """An API that answers one call after another with these codes, and the run ids that it was asked for."""
    asked, answers = list[str](), iter(codes)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body.get("dag_run_id") or body["name"])
            self.send_response(next(answers))
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield AirflowApi(f"http://127.0.0.1:{server.server_port}", "user", "password"), asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("last", [200, 409])
def test_a_run_is_asked_for_again_where_the_database_was_locked(last: int) -> None:
    """And may have been started by the call that failed."""
    with airflow(500, last) as (api, asked):
        started = api.trigger("nightly_scoring", {})
    assert asked == [started, started]


def test_a_pool_that_operators_have_changed_stays_as_it_is() -> None:
    with airflow(409) as (api, asked):
        api.make_pool("tandem_device", 1, "One at a time.")
    assert asked == ["tandem_device"]


def test_a_refused_run_is_not_asked_for_again() -> None:
    with airflow(422) as (api, asked), pytest.raises(Problem, match="422"):
        api.trigger("nightly_scoring", {"day": "14 January"})
    assert len(asked) == 1


def waiting(monkeypatch: pytest.MonkeyPatch, state: str, task: str) -> tuple[AirflowApi, list[str]]:
    """A client of an Airflow whose run and task are in these states, and all paths that it asked for. The scheduler's
    heart beats at every second look."""
    api, asked = AirflowApi("http://127.0.0.1:1", "user", "password"), list[str]()
    run = {"partition_key": "2026-01-16", "conf": {}, "state": state, "note": None}
    instance = {"task_id": "approve", "state": task, "start_date": "now", "try_number": 1}

    def call(method: str, path: str, body: object = None) -> dict[str, Any]:
        asked.append(path.rpartition("/")[2])
        beat = asked.count("health") // 2
        answers = {
            "health": {"scheduler": {"status": "healthy", "latest_scheduler_heartbeat": beat}},
            "taskInstances": {"task_instances": [instance]},
            "hitlDetails": {"subject": "commit?"},
        }
        return answers.get(asked[-1], run)

    monkeypatch.setattr(api, "_call", call)
    monkeypatch.setattr(airflow_api, "_POLL_SECONDS", 0.0)
    return api, asked


def test_a_question_is_shown_once_the_scheduler_has_seen_that_its_task_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    api, asked = waiting(monkeypatch, "running", "awaiting_input")
    assert api.wait_question("nightly_scoring", "run", "approve", 5.0) == {"subject": "commit?"}
    assert asked[-1] == "hitlDetails"
    # Three beats, of two looks each.
    assert asked.count("health") >= 6


def test_a_run_that_ends_without_a_question_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    api, asked = waiting(monkeypatch, "failed", "skipped")
    with pytest.raises(Problem, match="ended without a question of approve: failed"):
        api.wait_question("nightly_scoring", "run", "approve", 5.0)
    assert "hitlDetails" not in asked
