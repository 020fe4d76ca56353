"""For operators, beside the tasks themselves, on the real scheduler: links, the pool of the device, the trigger form,
backfills, late runs, logs and the event of the asset."""

import json
from urllib.parse import quote

import pytest
from tandem_stack.stack import DAG

from batch_job.launch import operating
from shared_model import demo_messages
from shared_model.demo_messages import FIRST_DAY
from shared_model.releases.store import Release
from tests.integration.stack.conftest import ACCEPTED, ROWS, SPARK, Accepted, Night, Unanswered, Up, ask
from tests.realtime_service.conftest import eventually
from tests.sink import Sink


def links(running: Up, run_id: str, task: str) -> dict[str, str]:
    path = f"/api/v2/dags/{DAG}/dagRuns/{quote(run_id)}/taskInstances/{task}/links"
    return dict(json.loads(ask(running, path, running.api.token).text)["extra_links"])


def test_tasks_link_to_the_report_to_spark_and_to_the_board(running: Up, night: Night) -> None:
    report = f"/{operating.report_path(str(FIRST_DAY), night.run.run_id)}"
    board = f"http://{running.plan.service.metrics_address}/board"
    assert links(running, night.run.run_id, "score") == {"Report": report, "Spark": SPARK, "SLA board": board}
    assert links(running, night.run.run_id, "report") == {"Report": report, "SLA board": board}
    # Airflow's page shows this part of the address in its frame.
    assert ask(running, report.removeprefix("/plugin/tandem"), running.api.token).code == 200


def test_a_waiting_approval_holds_up_no_other_day_and_holds_no_device(unanswered: Unanswered) -> None:
    beside = unanswered.beside
    assert (beside.run.state, beside.waiting["approve"]) == ("success", "awaiting_input")
    assert (beside.pool["slots"], beside.pool["occupied_slots"]) == (1, 0)


def test_only_scoring_takes_the_device(running: Up, night: Night) -> None:
    path = f"/api/v2/dags/{DAG}/dagRuns/{quote(night.run.run_id)}/taskInstances"
    tasks = json.loads(ask(running, path, running.api.token).text)["task_instances"]
    assert {it["task_id"] for it in tasks if it["pool"] == "tandem_device"} == {"score"}


def test_a_backfill_by_key_from_the_form_runs_the_day_and_changes_nothing_that_is_committed(
    unanswered: Unanswered,
) -> None:
    run = unanswered.beside.run
    assert run.run_id.startswith("backfill__")
    assert (run.partition, run.tasks["score"], run.tasks["approve"]) == (str(FIRST_DAY), "success", "skipped")
    assert run.note.startswith(f"{FIRST_DAY}: ")
    assert "an earlier run had committed the day" in run.note


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({"day": "14 January"}, "'14 January' is not a 'date'"),
        ({"force": "yes"}, "'yes' is not of type 'boolean'"),
        ({"int8": 1}, "1 is not of type 'boolean'"),
        ({"accept": ["counts"]}, "'counts' is not one of ['labels', 'agreement', 'agreement-drop']"),
        ({"accept": "labels"}, "'labels' is not of type 'null', 'array'"),
        ({"model": "my model; rm"}, "'my model; rm' does not match"),
    ],
)
def test_the_trigger_form_refuses_a_value_with_the_reason(running: Up, form: dict[str, object], why: str) -> None:
    body = {"logical_date": None, "conf": {"day": str(FIRST_DAY), **form}}
    answer = ask(running, f"/api/v2/dags/{DAG}/dagRuns", running.api.token, body)
    assert answer.code in (400, 422)
    assert why in json.loads(answer.text)["detail"]


def test_the_dag_has_one_version_however_often_it_is_read(running: Up, night: Night) -> None:
    """A deadline or a form that differed from one reading to the next would make a version of each."""
    versions = json.loads(ask(running, f"/api/v2/dags/{DAG}/dagVersions", running.api.token).text)
    assert [it["version_number"] for it in versions["dag_versions"]] == [1]


def test_a_late_run_is_shown_and_people_hear_of_it(running: Up, due: str, alerts: Sink) -> None:
    day = running.api.run_state(DAG, due).partition

    def told() -> list[str]:
        texts = [json.loads(request.body)["text"] for request in alerts.requests]
        return [text for text in texts if text.startswith(f"{DAG} is late: the run of {day} was due at ")]

    eventually(told, 180, every=0.5)
    (text,) = told()
    assert text.splitlines()[0].endswith(" and is running.")
    assert f"/dags/{DAG}/runs/{quote(due, safe='')}" in text
    page = ask(running, "/tandem/", running.api.token).text
    missed = page[page.index("Missed deadlines") :]
    assert f"<td>{due}</td><td>running</td>" in missed


def test_the_log_of_score_begins_with_what_it_does_and_ends_with_the_verdict(
    running: Up, night: Night, release: Release
) -> None:
    lines = [str(line["event"]) for line in running.api.task_events(DAG, night.run.run_id, "score")]
    wanted = (
        f"ds={FIRST_DAY}: release {release.id}, run {night.run.run_id}",
        "input 1,005 lines in 1 files of ",
        f"output {running.plan.state.scores_table}",
        f"scoring: {ROWS:,} of {ROWS:,} rows (100%) in ",
        f"ds={FIRST_DAY}: committed, not published; {ROWS:,} rows, ",
    )
    found = [next((number for number, line in enumerate(lines) if it in line), -1) for it in wanted]
    assert -1 not in found, (found, lines)
    assert found == sorted(found)
    assert not any("ds=" in line for line in lines[found[-1] + 1 :])


def test_the_asset_scores_has_an_event_of_each_day_that_was_published(
    running: Up, night: Night, accepted: Accepted, unanswered: Unanswered, release: Release
) -> None:
    listed = ask(running, f"/api/v2/assets/events?source_dag_id={DAG}&limit=100", running.api.token)
    events = {event["source_run_id"]: event for event in json.loads(listed.text)["asset_events"]}
    assert set(events) == {night.run.run_id, accepted.run.run_id, unanswered.beside.run.run_id}
    event = events[night.run.run_id]
    assert event["partition_key"] == str(FIRST_DAY)
    extra = event["extra"]
    assert (extra["day"], extra["rows"], extra["release"], extra["status"]) == (
        str(FIRST_DAY),
        ROWS,
        release.id,
        "published",
    )
    assert extra["epoch"].startswith(f"{FIRST_DAY}.")
    assert extra["rows_per_second"] > 0
    # Each day of the demo has these lines; the first one is compared with no other.
    assert (extra["quarantined"], extra["drift"]) == (len(demo_messages.DAMAGED_LINES), None)
    # The form gave its day; the run itself has no key.
    assert events[accepted.run.run_id]["partition_key"] == ACCEPTED
    shifted = events[accepted.run.run_id]["extra"]
    assert (shifted["rows"], shifted["quarantined"]) == (ROWS, 0)
    # The figure by which the gate refused the day.
    assert f" {shifted['drift']:.3f} against ds={FIRST_DAY}" in accepted.question["body"].replace("\\", "")
