"""Real nights: Airflow runs the DAG, Spark scores, Delta keeps, Redis serves, the service answers. Beside the one that
succeeds there are one that the gate refuses, one that a person accepts all the same, one that no answer comes for, one
whose messages are missing, and one of no day. At the end Ctrl-C, in the middle of another: all that `make up` has
started is gone, its files are its user's alone."""

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from deltalake import DeltaTable
from tandem_stack import calls, up
from tandem_stack.airflow_api import FINAL, AirflowApi, RunState
from tandem_stack.checks import Problem
from tandem_stack.stack import DAG, DRAIN, DRIFT

from batch_job import run_record
from batch_job.run_record import State
from realtime_service.client import Client
from shared_model.demo_messages import FIRST_DAY
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
from shared_model.releases.store import Release
from shared_model.types import DeferredState
from tests.batch_job.deferred.deferring import result, submit_to
from tests.integration.stack.conftest import APPROVER, ROWS, Up
from tests.private_files import open_to_others
from tests.realtime_service.conftest import eventually

RUN_SECONDS = 220.0
REFUSED, INTERRUPTED = "2026-01-20", "2026-01-21"
ACCEPTED, UNANSWERED = "2026-01-15", "2026-01-16"
#: Days of another label than the one before.
SHIFTED = {ACCEPTED: "my card is slowly 7", UNANSWERED: "where is my card 8"}


@pytest.fixture(scope="module")
def due(running: Up) -> str:
    """The id of the run that the schedule has started, of a day without messages."""
    eventually(lambda: running.api.run_ids(DAG), 60, every=0.2)
    (run_id,) = running.api.run_ids(DAG)
    return run_id


@dataclass(frozen=True)
class Night:
    """One finished run, and every address that one of our processes listened on meanwhile."""

    run: RunState
    listened: set[tuple[str, int]]


@pytest.fixture(scope="module")
def runs(running: Up, due: str) -> dict[str, str]:
    """Run ids by day, in the order they were triggered: by partition key, and as the trigger form does it."""
    write_day(running, REFUSED, '{"id": "a", "text": "hello"}\n' + "no JSON\n" * 9)
    asked: dict[str, tuple[dict[str, str], str | None]] = {
        "": ({}, None),
        str(FIRST_DAY): ({}, str(FIRST_DAY)),
        REFUSED: ({"day": REFUSED}, None),
    }
    return {day: running.api.trigger(DAG, *how) for day, how in asked.items()}


def write_day(running: Up, day: str, lines: str) -> None:
    folder = running.plan.state.messages_dir / f"ds={day}"
    folder.mkdir()
    (folder / "messages.jsonl").write_text(lines)


@pytest.fixture(scope="module")
def night(running: Up, runs: dict[str, str]) -> Night:
    listened: set[tuple[str, int]] = set()
    deadline = time.monotonic() + RUN_SECONDS
    while (run := running.api.run_state(DAG, runs[str(FIRST_DAY)])).state not in FINAL:
        assert time.monotonic() < deadline, run
        listened |= listening(running)
        time.sleep(0.5)
    return Night(run, listened)


def listening(running: Up) -> set[tuple[str, int]]:
    found: set[tuple[str, int]] = set()
    for process in running.descendants():
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            sockets = process.net_connections("inet")
            found |= {(each.laddr.ip, each.laddr.port) for each in sockets if each.status == psutil.CONN_LISTEN}
    return found


def task_log(running: Up, run_id: str, task: str, dag: str = DAG) -> str:
    return "\n".join(str(line["event"]) for line in running.api.task_events(dag, run_id, task))


def test_everything_listens_on_loopback_only(running: Up, night: Night) -> None:
    # "::ffff:" is how a socket of both families shows an address of the older one.
    addresses = {address.removeprefix("::ffff:") for address, _ in night.listened}

    assert {port for _, port in running.plan.ports().values()} <= {port for _, port in night.listened}
    assert addresses <= {"127.0.0.1", "::1"}


def test_every_task_succeeds(night: Night) -> None:
    assert night.run.partition == str(FIRST_DAY)
    done = dict.fromkeys(("plan", "score", "judge", "publish", "report", "complete"), "success")
    assert night.run.tasks == {**done, **dict.fromkeys(("approve", "commit"), "skipped")}
    assert night.run.state == "success"
    assert night.run.note == str(FIRST_DAY)


def test_task_logs_can_be_read_without_log_servers(running: Up, night: Night) -> None:
    assert "ds=2026-01-14" in task_log(running, night.run.run_id, "report")


def test_the_scores_are_in_the_table(running: Up, night: Night, release: Release) -> None:
    table = DeltaTable(running.plan.state.scores_table).to_pyarrow_table(partitions=[("ds", "=", str(FIRST_DAY))])

    assert table.num_rows == ROWS
    assert len(set(table["id"].to_pylist())) == ROWS
    assert set(table["release"].to_pylist()) == {release.id}


def test_the_scores_are_published_and_answer_calls(running: Up, night: Night, release: Release) -> None:
    with (
        RedisServer(running.plan.state) as server,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        pointer = client.hgetall(keys.epoch_pointer(release.id))
    text = calls.archived_texts(running.plan.state.messages_dir, FIRST_DAY, 1)[0]

    assert pointer["ds"] == str(FIRST_DAY)
    with Client(running.plan.service.grpc_address) as online:
        # A single call may miss it: a look-up that takes too long is given up, and the text is scored.
        calls.wait_precomputed(online, text)


def errors(running: Up, run_id: str, task: str) -> list[str]:
    """A task's errors as the UI shows them, without Airflow's own last line."""
    events = running.api.task_events(DAG, run_id, task)
    assert not any(event.get("error_detail") for event in events), "a traceback"
    said = [str(event["event"]) for event in events if event.get("level") == "error"]
    assert said[-1:] == ["Task exited"]
    return said[:-1]


def test_a_refused_night_fails_at_once_says_why_in_one_line_and_is_reported(
    running: Up, night: Night, runs: dict[str, str]
) -> None:
    run = running.api.wait_run(DAG, runs[REFUSED], RUN_SECONDS)

    before, after = ("plan", "score", "report"), ("approve", "commit", "publish", "complete")
    assert run.tasks == {
        "judge": "failed",
        **dict.fromkeys(before, "success"),
        **dict.fromkeys(after, "upstream_failed"),
    }
    assert (run.state, run.note, run.tries["judge"]) == ("failed", REFUSED, 1)
    (line,) = errors(running, run.run_id, "judge")
    assert line.startswith(f"batch_job judge: run {run.run_id} of ds={REFUSED}: 9 of 10 lines are quarantined")
    assert "9 of 10 lines are quarantined" in task_log(running, run.run_id, "report")


@dataclass(frozen=True)
class Asked:
    """The question of a refused run, the refusal of a user who may not answer, and the run of the unanswered day."""

    question: dict[str, Any]
    intruder: str
    run: RunState
    unanswered: str


@pytest.fixture(scope="module")
def asked(running: Up, night: Night) -> Asked:
    for day, text in SHIFTED.items():
        lines = (json.dumps({"id": f"m{number}", "text": text}) for number in range(ROWS))
        write_day(running, day, "\n".join(lines))
    run_id = running.api.trigger(DAG, {"day": ACCEPTED})
    question = running.api.wait_question(DAG, run_id, "approve", RUN_SECONDS)
    with pytest.raises(Problem) as refused:
        # The administrator is not an approver.
        running.api.answer(DAG, run_id, "approve", "Approve")
    airflow = running.plan.airflow
    person = AirflowApi(airflow.address, APPROVER, airflow.password(APPROVER))
    person.wait_ready(30)
    person.answer(DAG, run_id, "approve", "Approve", comment="a new product")
    run = running.api.wait_run(DAG, run_id, RUN_SECONDS)
    # Not sooner: it is compared with the day that was accepted.
    return Asked(question, str(refused.value), run, running.api.trigger(DAG, {"day": UNANSWERED}))


def test_a_refused_day_asks_the_approvers_and_no_other_may_answer(running: Up, asked: Asked) -> None:
    assert asked.question["subject"].startswith(f"ds={ACCEPTED}: commit the scores that labels")
    assert [it["id"] for it in asked.question["assigned_users"]] == [APPROVER]
    page = running.plan.state.runs_dir / ACCEPTED / asked.run.run_id / "report.html"
    for said in ("**labels**: PSI", f"- {ROWS:,} rows scored and 0 lines quarantined", f"- report: {page}"):
        assert said in asked.question["body"].replace("\\", "")
    assert "403" in asked.intruder
    assert "is not a respondent for the task" in asked.intruder


def test_what_a_person_accepts_is_committed_in_their_name_and_published(running: Up, asked: Asked) -> None:
    assert (asked.run.state, set(asked.run.tasks.values())) == ("success", {"success"})
    record = run_record.read(running.plan.state.runs_dir / ACCEPTED / f"{asked.run.run_id}.json")
    facts = next(it for it in DeltaTable(running.plan.state.scores_table).history() if it.get("tandem.ds") == ACCEPTED)
    assert record.state is State.PUBLISHED
    assert record.approval
    assert (record.approval.by, record.approval.comment) == (APPROVER, "a new product")
    assert (facts["tandem.approved_by"], facts["tandem.approved_at"]) == (APPROVER, record.approval.at)


def test_a_question_without_an_answer_expires_and_the_day_before_keeps_serving(running: Up, asked: Asked) -> None:
    run = running.api.wait_run(DAG, asked.unanswered, RUN_SECONDS)

    assert (run.state, run.tasks["approve"], run.tries["approve"]) == ("failed", "failed", 1)
    assert (run.tasks["score"], run.tasks["judge"], run.tasks["report"]) == ("success", "success", "success")
    (line,) = errors(running, run.run_id, "approve")
    assert line.startswith(f"ds={UNANSWERED}: expired; nothing committed: labels: ")
    days = set(DeltaTable(running.plan.state.scores_table).to_pyarrow_table(columns=["ds"])["ds"].to_pylist())
    assert days == {str(FIRST_DAY), ACCEPTED}


def test_a_run_of_no_day_fails_at_once(running: Up, night: Night, runs: dict[str, str]) -> None:
    run = running.api.wait_run(DAG, runs[""], RUN_SECONDS)

    assert (run.state, run.tasks["plan"], run.tries["plan"], run.tasks["report"]) == ("failed", "failed", 1, "skipped")
    (line,) = errors(running, run.run_id, "plan")
    assert line.startswith("no day: ")


def test_a_day_that_is_none_is_refused_when_it_is_triggered(running: Up) -> None:
    with pytest.raises(Problem, match="'14 January' is not a 'date'"):
        running.api.trigger(DAG, {"day": "14 January"})


def test_a_day_without_messages_waits_and_holds_up_no_other(running: Up, night: Night, due: str) -> None:
    day, run = str(up.due_day(datetime.now(UTC))), running.api.run_state(DAG, due)

    assert (run.state, run.partition, run.note) == ("running", day, day)
    assert running.api.scheduled_days(DAG) == {day}


def test_only_what_is_due_or_triggered_runs(
    running: Up, night: Night, due: str, runs: dict[str, str], asked: Asked
) -> None:
    assert set(running.api.run_ids(DAG)) == {due, asked.run.run_id, asked.unanswered, *runs.values()}


@contextlib.contextmanager
def service_stopped(running: Up) -> Iterator[None]:
    """No lane takes deferred requests meanwhile."""
    stopped = list[psutil.Process]()
    for process in running.descendants():
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            stopped += [process] if "realtime_service" in process.cmdline() else []
    assert stopped
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in stopped:
            process.resume()


def test_a_drain_finds_nothing_and_starts_no_spark(running: Up, asked: Asked) -> None:
    run = running.api.wait_run(DRAIN, running.api.trigger(DRAIN, {}), RUN_SECONDS)

    assert (run.state, run.tasks) == ("success", {"check": "skipped", "drain": "skipped"})
    assert "0 deferred requests wait" in task_log(running, run.run_id, "check", DRAIN)


def test_what_lanes_left_is_drained_in_spark_beside_the_latest_planned_day(running: Up, asked: Asked) -> None:
    running.api.wait_run(DAG, asked.unanswered, RUN_SECONDS)
    with RedisServer(running.plan.state) as server, service_stopped(running):
        request_id = submit_to(server.url, "a text of no message")
        run = running.api.wait_run(DRAIN, running.api.trigger(DRAIN, {"limit": 1}), RUN_SECONDS)
        item = result(server.url, request_id)

    assert (run.state, run.tasks) == ("success", {"check": "success", "drain": "success"})
    assert "1 deferred requests wait, none with a deadline" in task_log(running, run.run_id, "check", DRAIN)
    assert item is not None
    assert (item.state, item.computed_by) == (DeferredState.PUBLISHED, "nightly")
    table = DeltaTable(running.plan.state.scores_table).to_pyarrow_table(partitions=[("source", "=", "deferred")])
    assert table["ds"].to_pylist() == [REFUSED]


def test_drift_is_measured_and_its_page_is_beside_the_scores(running: Up, asked: Asked) -> None:
    """The accepted day against the one before it. `make up` leaves this DAG to operators."""
    running.api.pause(DRIFT, False)
    run = running.api.wait_run(DRIFT, running.api.trigger(DRIFT, {"to": ACCEPTED, "days": [1, 30]}), RUN_SECONDS)

    assert (run.state, run.tasks) == ("success", {"measure": "success"})
    said = task_log(running, run.run_id, "measure", DRIFT)
    assert f"{ACCEPTED}..{ACCEPTED} (1 day), release " in said
    assert f": {ROWS:,} rows against {ROWS:,} of {FIRST_DAY}..{FIRST_DAY}" in said
    assert f"2025-12-17..{ACCEPTED}: not compared" in said
    page = running.plan.state.state / "drift" / ACCEPTED / "drift.html"
    assert f"page {page}" in said
    assert "<svg" in page.read_text()


def is_java(process: psutil.Process) -> bool:
    try:
        return process.name() == "java"
    except psutil.NoSuchProcess:  # it has just ended
        return False


def test_ctrl_c_stops_everything_even_a_spark_job_at_work(running: Up) -> None:
    """The last test: nothing runs afterwards."""
    write_day(running, INTERRUPTED, '{"id": "a", "text": "hello"}\n')
    running.api.trigger(DAG, {"day": INTERRUPTED})
    eventually(lambda: any(map(is_java, running.descendants())), RUN_SECONDS, every=0.2)
    started = running.descendants()
    running.process.send_signal(signal.SIGINT)
    code = running.process.wait(60)
    _, left = psutil.wait_procs(started, timeout=0)
    for process in left:
        process.kill()
    said = running.output.read_text()

    assert code == 0, said
    assert left == []
    # Messages are the test's own.
    messages = running.plan.state.messages_dir
    assert [it for it in open_to_others(running.plan.state.state) if not Path(it).is_relative_to(messages)] == []
    assert running.plan.service.grpc_address in said
    assert "user admin, password " in said
