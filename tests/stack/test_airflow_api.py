"""Calls of Airflow that are made again, against a scripted server."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from tandem_stack.airflow_api import AirflowApi
from tandem_stack.checks import Problem


@contextlib.contextmanager
def airflow(*codes: int) -> Iterator[tuple[AirflowApi, list[str]]]:
    """An API that answers one call after another with these codes, and the run ids that it was asked for."""
    asked, answers = list[str](), iter(codes)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body["dag_run_id"])
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


def test_a_refused_run_is_not_asked_for_again() -> None:
    with airflow(422) as (api, asked), pytest.raises(Problem, match="422"):
        api.trigger("nightly_scoring", {"day": "14 January"})
    assert len(asked) == 1
