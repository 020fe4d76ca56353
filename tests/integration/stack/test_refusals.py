"""Runs that do not end well by themselves: refused by the gate, accepted by a person, left without an answer, and of no
day. After the other files, because the answer that never comes is waited for."""

import redis
from deltalake import DeltaTable
from tandem_stack import calls
from tandem_stack.stack import DAG

from batch_job import run_record
from batch_job.run_record import State
from batch_job.shards.schemas import ARCHIVE
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
    SHIFTED,
    UNANSWERED,
    Accepted,
    Night,
    Unanswered,
    Up,
    task_log,
)


def errors(running: Up, run_id: str, task: str) -> list[str]:
    """A task's errors as the UI shows them, without Airflow's own last line."""
    events = running.api.task_events(DAG, run_id, task)
    assert not any(event.get("error_detail") for event in events), "a traceback"
    said = [str(event["event"]) for event in events if event.get("level") == "error"]
    assert said[-1:] == ["Task exited"]
    return said[:-1]


def assert_serves(running: Up, day: str, release: Release) -> None:
    """The scores of a day, and of no later one, answer calls."""
    with RedisServer(running.plan.state) as server, redis.Redis.from_url(server.url, decode_responses=True) as client:
        assert client.hget(keys.epoch_pointer(release.id), "ds") == day
    with Client(running.plan.service.grpc_address) as online:
        calls.wait_precomputed(online, SHIFTED[day])


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
    assert run.note.startswith(f"{REFUSED}: refused: 5 of 100 lines are quarantined")
    (line,) = errors(running, run.run_id, "judge")
    assert line.startswith(f"batch_job judge: run {run.run_id} of ds={REFUSED}: 5 of 100 lines are quarantined")
    assert "5 of 100 lines are quarantined" in task_log(running, run.run_id, "report")


def test_after_a_refused_night_the_day_before_keeps_serving(
    running: Up, accepted: Accepted, runs: dict[str, str], release: Release
) -> None:
    running.api.wait_run(DAG, runs[REFUSED], RUN_SECONDS)
    assert accepted.run.state == "success"
    assert_serves(running, ACCEPTED, release)


def test_a_refused_day_asks_the_approvers_and_no_other_may_answer(running: Up, accepted: Accepted) -> None:
    assert accepted.question["subject"].startswith(f"ds={ACCEPTED}: commit the scores that labels")
    assert [it["id"] for it in accepted.question["assigned_users"]] == [APPROVER]
    page = running.plan.state.runs_dir / ACCEPTED / accepted.run.run_id / "report.html"
    for said in ("**labels**: PSI", f"- {ROWS:,} rows scored and 0 lines quarantined", f"- report: {page}"):
        assert said in accepted.question["body"].replace("\\", "")
    assert "403" in accepted.intruder
    assert "is not a respondent for the task" in accepted.intruder


def test_what_a_person_accepts_is_committed_in_their_name_and_published(running: Up, accepted: Accepted) -> None:
    assert (accepted.run.state, set(accepted.run.tasks.values())) == ("success", {"success"})
    record = run_record.read(running.plan.state.runs_dir / ACCEPTED / f"{accepted.run.run_id}.json")
    facts = next(it for it in DeltaTable(running.plan.state.scores_table).history() if it.get("tandem.ds") == ACCEPTED)
    assert record.state is State.PUBLISHED
    assert record.approval
    assert (record.approval.by, record.approval.comment) == (APPROVER, "")
    assert (facts["tandem.approved_by"], facts["tandem.approved_at"]) == (APPROVER, record.approval.at)


def test_a_run_of_no_day_fails_at_once(running: Up, night: Night, runs: dict[str, str]) -> None:
    run = running.api.wait_run(DAG, runs[""], RUN_SECONDS)

    assert (run.state, run.tasks["plan"], run.tries["plan"], run.tasks["report"]) == ("failed", "failed", 1, "skipped")
    (line,) = errors(running, run.run_id, "plan")
    assert line.startswith("no day: ")


def test_a_question_without_an_answer_expires_and_the_day_before_keeps_serving(
    running: Up, unanswered: Unanswered, release: Release
) -> None:
    run = running.api.wait_run(DAG, unanswered.run_id, RUN_SECONDS)

    assert (run.state, run.tasks["approve"], run.tries["approve"]) == ("failed", "failed", 1)
    assert (run.tasks["score"], run.tasks["judge"], run.tasks["report"]) == ("success", "success", "success")
    (line,) = errors(running, run.run_id, "approve")
    assert line.startswith(f"ds={UNANSWERED}: expired; nothing committed: labels: ")
    table = DeltaTable(running.plan.state.scores_table)
    committed = table.to_pyarrow_table(columns=["ds"], filters=[("source", "=", ARCHIVE)])
    assert set(committed["ds"].to_pylist()) == {str(FIRST_DAY), ACCEPTED}
    assert_serves(running, ACCEPTED, release)
