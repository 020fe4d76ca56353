"""Real nights: Airflow runs the DAG, Spark scores, Delta keeps, Redis serves, the service answers. Beside the one that
succeeds there is one that the gate refuses, one whose messages are missing, and one of no day."""

import contextlib
import time
from dataclasses import dataclass

import psutil
import pytest
import redis
from deltalake import DeltaTable
from tandem_stack import calls
from tandem_stack.airflow_api import FINAL, RunState
from tandem_stack.checks import Problem
from tandem_stack.stack import DAG, Stack

from realtime_service.client import Client
from shared_model.demo_messages import FIRST_DAY
from shared_model.redis_store import keys
from shared_model.releases.store import Release
from shared_model.types import ServingPath
from tests.private_files import open_to_others

ROWS = 300
RUN_SECONDS = 220.0
REFUSED, MISSING = "2026-01-20", "2026-01-30"


@pytest.fixture(scope="module")
def known_dag(running: Stack) -> dict[str, object]:
    """The DAG as Airflow found it, before anybody touched it."""
    return running.api.wait_dag(DAG, 10)


@dataclass(frozen=True)
class Night:
    """One finished run, and every address that one of our processes listened on meanwhile."""

    run: RunState
    listened: set[tuple[str, int]]


@pytest.fixture(scope="module")
def runs(running: Stack, known_dag: dict[str, object]) -> dict[str, str]:
    """Run ids by day, in the order they were triggered: by partition key, and as the trigger form does it."""
    folder = running.plan.state.messages_dir / f"ds={REFUSED}"
    folder.mkdir(parents=True)
    (folder / "messages.jsonl").write_text('{"id": "a", "text": "hello"}\n' + "no JSON\n" * 9)
    asked: dict[str, tuple[dict[str, str], str | None]] = {
        MISSING: ({"day": MISSING}, None),
        "": ({}, None),
        str(FIRST_DAY): ({}, str(FIRST_DAY)),
        REFUSED: ({"day": REFUSED}, None),
    }
    ids = {day: running.api.trigger(DAG, *how) for day, how in asked.items()}
    running.api.pause(DAG, False)
    return ids


@pytest.fixture(scope="module")
def night(running: Stack, runs: dict[str, str]) -> Night:
    listened: set[tuple[str, int]] = set()
    deadline = time.monotonic() + RUN_SECONDS
    while (run := running.api.run_state(DAG, runs[str(FIRST_DAY)])).state not in FINAL:
        assert time.monotonic() < deadline, run
        running.supervisor.check()
        listened |= listening()
        time.sleep(0.5)
    return Night(run, listened)


def listening() -> set[tuple[str, int]]:
    found: set[tuple[str, int]] = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            sockets = process.net_connections("inet")
            found |= {(each.laddr.ip, each.laddr.port) for each in sockets if each.status == psutil.CONN_LISTEN}
    return found


def task_log(running: Stack, run_id: str, task: str) -> str:
    return "\n".join(str(line["event"]) for line in running.api.task_events(DAG, run_id, task))


def test_the_dag_is_paused_at_creation(known_dag: dict[str, object]) -> None:
    assert known_dag["is_paused"] is True


def test_everything_listens_on_loopback_only(running: Stack, night: Night) -> None:
    # "::ffff:" is how a socket of both families shows an address of the older one.
    addresses = {address.removeprefix("::ffff:") for address, _ in night.listened}

    assert {port for _, port in running.plan.ports().values()} <= {port for _, port in night.listened}
    assert addresses <= {"127.0.0.1", "::1"}


def test_every_task_succeeds(night: Night) -> None:
    assert night.run.partition == str(FIRST_DAY)
    assert night.run.tasks == dict.fromkeys(("plan", "score", "publish", "report", "complete"), "success")
    assert night.run.state == "success"
    assert night.run.note == str(FIRST_DAY)


def test_task_logs_can_be_read_without_log_servers(running: Stack, night: Night) -> None:
    assert "ds=2026-01-14" in task_log(running, night.run.run_id, "report")


def test_the_scores_are_in_the_table(running: Stack, night: Night, release: Release) -> None:
    table = DeltaTable(running.plan.state.scores_table).to_pyarrow_table()

    assert table.num_rows == ROWS
    assert len(set(table["id"].to_pylist())) == ROWS
    assert set(table["release"].to_pylist()) == {release.id}


def test_the_scores_are_published_and_answer_calls(running: Stack, night: Night, release: Release) -> None:
    with redis.Redis.from_url(running.redis_url, decode_responses=True) as client:
        pointer = client.hgetall(keys.epoch_pointer(release.id))
    text = calls.archived_texts(running.plan.state.messages_dir, FIRST_DAY, 1)[0]

    assert pointer["ds"] == str(FIRST_DAY)
    with Client(running.plan.service.grpc_address) as online:
        calls.wait_precomputed(online, text)
        assert online.score(text).path == ServingPath.PRECOMPUTED


def errors(running: Stack, run_id: str, task: str) -> list[str]:
    """A task's errors as the UI shows them, without Airflow's own last line."""
    events = running.api.task_events(DAG, run_id, task)
    assert not any(event.get("error_detail") for event in events), "a traceback"
    said = [str(event["event"]) for event in events if event.get("level") == "error"]
    assert said[-1:] == ["Task exited"]
    return said[:-1]


def test_a_refused_night_fails_at_once_says_why_in_one_line_and_is_reported(
    running: Stack, night: Night, runs: dict[str, str]
) -> None:
    run = running.api.wait_run(DAG, runs[REFUSED], RUN_SECONDS)

    before, after = ("plan", "report"), ("publish", "complete")
    assert run.tasks == {
        "score": "failed",
        **dict.fromkeys(before, "success"),
        **dict.fromkeys(after, "upstream_failed"),
    }
    assert (run.state, run.note, run.tries["score"]) == ("failed", REFUSED, 1)
    (line,) = errors(running, run.run_id, "score")
    assert line.startswith(f"batch_job score: ds={REFUSED}: 9 of 10 lines are quarantined")
    assert "9 of 10 lines are quarantined" in task_log(running, run.run_id, "report")


def test_a_run_of_no_day_fails_at_once(running: Stack, night: Night, runs: dict[str, str]) -> None:
    run = running.api.wait_run(DAG, runs[""], RUN_SECONDS)

    assert (run.state, run.tasks["plan"], run.tries["plan"], run.tasks["report"]) == ("failed", "failed", 1, "skipped")
    (line,) = errors(running, run.run_id, "plan")
    assert line.startswith("no day: ")


def test_a_day_that_is_none_is_refused_when_it_is_triggered(running: Stack) -> None:
    with pytest.raises(Problem, match="'14 January' is not a 'date'"):
        running.api.trigger(DAG, {"day": "14 January"})


def test_a_day_without_messages_waits_and_holds_up_no_other(running: Stack, night: Night, runs: dict[str, str]) -> None:
    run = running.api.run_state(DAG, runs[MISSING])

    assert (run.state, run.note) == ("running", MISSING)


def test_only_what_is_triggered_runs(running: Stack, night: Night, runs: dict[str, str]) -> None:
    assert set(running.api.run_ids(DAG)) == set(runs.values())


def test_no_file_of_a_night_is_readable_by_others(running: Stack, night: Night) -> None:
    """What Airflow itself keeps has the umask of `make up`: see there."""
    state = running.plan.state.state
    assert [it for name in ("quarantine", "runs", "scores") for it in open_to_others(state / name)] == []
