"""The few calls of Airflow's REST API that the stack makes."""

import contextlib
import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

from batch_job.launch import spark_submit
from tandem_stack.checks import Problem

_CALL_SECONDS = 30.0
_POLL_SECONDS = 0.5
Found = TypeVar("Found")
#: Beats of the scheduler's heart, one a second, after which it has seen that a task waits for a person. It takes a task
#: that is answered sooner for a lost one, because the end of its first half comes after the start of its second.
_BEATS = 3
#: States a DAG run does not leave.
FINAL = ("success", "failed")


class NotYet(Problem):
    """Airflow does not know what was asked for, or cannot say now; later it may."""


class AlreadyThere(Problem):
    """Airflow has something of that id."""


@dataclass(frozen=True)
class RunState:
    """One DAG run: its state and note, and each task's state and number of tries, in the order they started."""

    run_id: str
    partition: str
    state: str
    tasks: dict[str, str]
    tries: Mapping[str, int] = field(default_factory=dict)
    note: str = ""


def _question(dag: str, run_id: str, task: str) -> str:
    """The path of what a task asks a person."""
    return f"/api/v2/dags/{dag}/dagRuns/{run_id}/taskInstances/{task}/-1/hitlDetails"


class AirflowApi:
    """A client of one Airflow. `alive` is called while waiting; it raises when waiting has become pointless."""

    def __init__(self, address: str, user: str, password: str, alive: Callable[[], None] = lambda: None) -> None:
        self._address = address
        self._login = {"username": user, "password": password}
        self._alive = alive
        self.token = ""

    def wait_ready(self, timeout_s: float) -> None:
        """Until the API answers and the scheduler's heart beats."""
        self._wait(lambda: self._scheduler()["status"] == "healthy", timeout_s, "Airflow is not healthy")
        self.token = str(self._call("POST", "/auth/token", self._login)["access_token"])

    def wait_dag(self, dag: str, timeout_s: float) -> dict[str, Any]:
        """Until Airflow has read the DAG; returns what it knows of it.

        Raises: Problem with the import error, if there is one.
        """

        def known() -> dict[str, Any]:
            errors = self._call("GET", "/api/v2/importErrors")["import_errors"]
            if errors:
                last_line = errors[0]["stack_trace"].strip().splitlines()[-1]
                raise Problem(f"Airflow cannot import {errors[0]['filename']}: {last_line}")
            return self._call("GET", f"/api/v2/dags/{dag}")

        return self._wait(known, timeout_s, f"Airflow does not find the DAG {dag}")

    def make_pool(self, name: str, slots: int, description: str) -> None:
        """Unless it is there already: an operator may have given it more slots."""
        with contextlib.suppress(AlreadyThere):
            self._call("POST", "/api/v2/pools", {"name": name, "slots": slots, "description": description})

    def pause(self, dag: str, paused: bool) -> None:
        self._call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": paused})

    def trigger(self, dag: str, conf: Mapping[str, object], partition: str | None = None) -> str:
        """Start a run as the trigger form does; returns its id. SQLite may be locked by the scheduler, which Airflow
        answers with 500, so it is asked again, for the same run."""
        run_id = f"manual__{uuid.uuid4()}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf, "partition_key": partition}

        def started() -> str:
            with contextlib.suppress(AlreadyThere):
                self._call("POST", f"/api/v2/dags/{dag}/dagRuns", body)
            return run_id

        return self._wait(started, _CALL_SECONDS, f"Airflow does not start a run of {dag}")

    def run_state(self, dag: str, run_id: str) -> RunState:
        run = self._call("GET", f"/api/v2/dags/{dag}/dagRuns/{run_id}")
        instances = self._call("GET", f"/api/v2/dags/{dag}/dagRuns/{run_id}/taskInstances")["task_instances"]
        instances.sort(key=lambda instance: instance["start_date"] or "later")
        tasks = {instance["task_id"]: str(instance["state"] or "waiting") for instance in instances}
        tries = {instance["task_id"]: int(instance["try_number"]) for instance in instances}
        day = spark_submit.day_of(run["partition_key"], run["conf"])
        return RunState(run_id, day, str(run["state"]), tasks, tries, str(run["note"] or ""))

    def run_ids(self, dag: str) -> list[str]:
        """Every run of the DAG, whatever started it."""
        return [run["dag_run_id"] for run in self._call("GET", f"/api/v2/dags/{dag}/dagRuns")["dag_runs"]]

    def scheduled_days(self, dag: str) -> set[str]:
        """The days that the schedule has started a run for, the latest at least."""
        path = f"/api/v2/dags/{dag}/dagRuns?run_type=scheduled&order_by=-run_after"
        return {str(run["partition_key"]) for run in self._call("GET", path)["dag_runs"]}

    def task_events(self, dag: str, run_id: str, task: str) -> list[dict[str, Any]]:
        """The lines that the first try of a task wrote, as the UI shows them: text, level and further fields."""
        path = f"/api/v2/dags/{dag}/dagRuns/{run_id}/taskInstances/{task}/logs/1"
        return list(self._call("GET", path)["content"])

    def wait_started(self, dag: str, run_id: str, task: str, timeout_s: float) -> None:
        """Until a task runs or has run, or the run has ended without."""
        self._wait_task(dag, run_id, task, ("running", "success", "failed"), timeout_s)

    def wait_question(self, dag: str, run_id: str, task: str, timeout_s: float) -> dict[str, Any]:
        """Until a task waits for a person's answer, and can be answered; returns what it asks. Raises: Problem if the
        run ends without."""
        run = self._wait_task(dag, run_id, task, ("awaiting_input",), timeout_s)
        if run.state in FINAL:
            raise Problem(f"{dag} {run_id} ended without a question of {task}: {run.state}, {run.tasks}")
        for _ in range(_BEATS):
            self._wait_beat()
        return self._call("GET", _question(dag, run_id, task))

    def answer(self, dag: str, run_id: str, task: str, option: str, **form: str) -> None:
        """Answer what a task asks, as this user. Raises: Problem where the user may not."""
        body = {"chosen_options": [option], "params_input": form}

        def answered() -> bool:
            with contextlib.suppress(AlreadyThere):
                self._call("PATCH", _question(dag, run_id, task), body)
            return True

        self._wait(answered, _CALL_SECONDS, f"{task} of {dag} takes no answer")

    def _wait_task(self, dag: str, run_id: str, task: str, states: tuple[str, ...], timeout_s: float) -> RunState:
        def reached() -> RunState | None:
            run = self.run_state(dag, run_id)
            return run if run.state in FINAL or run.tasks.get(task) in states else None

        return self._wait(reached, timeout_s, f"{task} of {dag} {run_id} is not {states[0]}")

    def _wait_beat(self) -> None:
        last = self._scheduler()
        self._wait(lambda: self._scheduler() != last, _CALL_SECONDS, "the scheduler's heart does not beat")

    def _scheduler(self) -> dict[str, Any]:
        return dict(self._call("GET", "/api/v2/monitor/health")["scheduler"])

    def wait_run(self, dag: str, run_id: str, timeout_s: float) -> RunState:
        """Until a run has succeeded or failed."""

        def final() -> RunState | None:
            state = self.run_state(dag, run_id)
            return state if state.state in FINAL else None

        return self._wait(final, timeout_s, f"{dag} {run_id} has not ended")

    def _wait(self, ask: Callable[[], Found | None], timeout_s: float, what: str) -> Found:
        deadline = time.monotonic() + timeout_s
        while True:
            self._alive()
            try:
                if answer := ask():
                    return answer
                reason = "not yet"
            except (NotYet, OSError) as error:
                reason = str(error)
            if time.monotonic() > deadline:
                raise Problem(f"{what} after {timeout_s:.0f} s: {reason}")
            time.sleep(_POLL_SECONDS)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        request = urllib.request.Request(
            self._address + path, None if body is None else json.dumps(body).encode(), method=method
        )
        request.add_header("Content-Type", "application/json")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=_CALL_SECONDS) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except urllib.error.HTTPError as error:
            detail = error.read(300).decode(errors="replace")
            later = error.code == HTTPStatus.NOT_FOUND or error.code >= HTTPStatus.INTERNAL_SERVER_ERROR
            kind = NotYet if later else AlreadyThere if error.code == HTTPStatus.CONFLICT else Problem
            raise kind(f"Airflow: {method} {path}: {error.code} {detail}") from error
