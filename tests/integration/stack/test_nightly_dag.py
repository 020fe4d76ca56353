"""Real nights: Airflow runs the DAG, Spark scores, Delta keeps, Redis serves, the service answers."""

from datetime import UTC, datetime

import pytest
import redis
from deltalake import DeltaTable
from tandem_stack import calls, up
from tandem_stack.checks import Problem
from tandem_stack.stack import DAG

from batch_job import run_record
from batch_job.run_record import State
from realtime_service.client import Client
from shared_model.demo_messages import FIRST_DAY
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
from shared_model.releases.store import Release
from tests.integration.stack.conftest import (
    ACCEPTED,
    APPROVER,
    REFUSED,
    ROWS,
    RUN_SECONDS,
    UNANSWERED,
    Asked,
    Night,
    Up,
    task_log,
)


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
    assert night.run.note.startswith(f"{FIRST_DAY}: published, live as epoch {FIRST_DAY}.")
    assert f"; {ROWS:,} rows, " in night.run.note


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
    assert (run.state, run.note, run.tries["judge"]) == ("failed", run.note, 1)
    assert run.note.startswith(f"{REFUSED}: refused: 9 of 10 lines are quarantined")
    (line,) = errors(running, run.run_id, "judge")
    assert line.startswith(f"batch_job judge: run {run.run_id} of ds={REFUSED}: 9 of 10 lines are quarantined")
    assert "9 of 10 lines are quarantined" in task_log(running, run.run_id, "report")


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
    assert set(running.api.run_ids(DAG)) == {
        due,
        asked.run.run_id,
        asked.unanswered,
        asked.beside.run.run_id,
        *runs.values(),
    }
