"""An operator in a browser: the day that an approver started by the form and accepted, the log of its scoring, and the
pages that show it. Screenshots stay in `.tandem/screenshots`."""

from typing import Any

import pytest
from deltalake import DeltaTable
from playwright.sync_api import FrameLocator, Page, expect
from tandem_stack.airflow_api import AirflowApi
from tandem_stack.stack import DAG

from tests.integration.stack.browsing import WRONG_MODEL, shot
from tests.integration.stack.conftest import (
    ACCEPTED,
    APPROVER,
    COMMENTED,
    HOSTILE_LINE,
    REFUSED,
    REJECTED,
    RUN_SECONDS,
    Accepted,
    Up,
    write_shifted,
)


def commit_facts(running: Up, day: str) -> dict[str, Any]:
    return next(it for it in DeltaTable(running.plan.state.scores_table).history() if it.get("tandem.ds") == day)


def test_the_form_starts_the_day_that_was_typed_and_its_log_grows_on_the_page(accepted: Accepted) -> None:
    """The log by the fixture."""
    assert accepted.run.partition == ACCEPTED


def test_the_form_refuses_a_wrong_day_and_a_wrong_model(accepted: Accepted) -> None:
    """A browser takes 30 February for an empty field. The server checks the pattern of a model's name."""
    assert accepted.form["day"] == "This field is required"
    assert f"{WRONG_MODEL!r} does not match" in accepted.form["model"]


def test_a_click_of_one_who_is_not_an_approver_is_refused(accepted: Accepted) -> None:
    """Of the administrator, before the approver's."""
    assert accepted.denied.splitlines() == ["Access Denied", "You do not have permission to perform this action."]


def test_the_question_shows_the_plot_of_the_labels(accepted: Accepted) -> None:
    """From the page *Tandem*, with the approver's cookie."""
    assert accepted.plot_pixels > 0


def test_a_click_approves_and_the_commit_has_the_name(running: Up, accepted: Accepted) -> None:
    assert (accepted.run.state, accepted.run.tasks["commit"]) == ("success", "success")
    assert accepted.run.note.endswith(f"accepted by {APPROVER}")
    facts = commit_facts(running, ACCEPTED)
    assert (facts["tandem.approved_by"], facts["tandem.approval_comment"]) == (APPROVER, "")


def approver(running: Up) -> AirflowApi:
    airflow = running.plan.airflow
    person = AirflowApi(airflow.address, APPROVER, airflow.password(APPROVER))
    person.wait_ready(30)
    return person


@pytest.mark.proof
def test_a_comment_is_kept_with_the_scores(running: Up, accepted: Accepted) -> None:
    """By the API. The step keeps a comment by a test of its own."""
    write_shifted(running, COMMENTED)
    run_id = running.api.trigger(DAG, {"day": COMMENTED})
    running.api.wait_question(DAG, run_id, "approve", RUN_SECONDS)
    approver(running).answer(DAG, run_id, "approve", "Approve", comment="a new product")
    run = running.api.wait_run(DAG, run_id, RUN_SECONDS)
    assert (run.state, commit_facts(running, COMMENTED)["tandem.approval_comment"]) == ("success", "a new product")


@pytest.mark.proof
def test_a_person_who_rejects_fails_the_run_in_their_name(running: Up, accepted: Accepted) -> None:
    write_shifted(running, REJECTED)
    run_id = running.api.trigger(DAG, {"day": REJECTED})
    running.api.wait_question(DAG, run_id, "approve", RUN_SECONDS)
    approver(running).answer(DAG, run_id, "approve", "Reject")
    run = running.api.wait_run(DAG, run_id, RUN_SECONDS)
    assert (run.state, run.tasks["approve"], run.tries["approve"]) == ("failed", "failed", 1)
    assert f"rejected by {APPROVER}" in run.note
    assert not any(it.get("tandem.ds") == REJECTED for it in DeltaTable(running.plan.state.scores_table).history())


def test_the_grid_shows_each_task_of_the_run(page: Page, accepted: Accepted) -> None:
    page.goto(f"/dags/{DAG}/runs/{accepted.run.run_id}")
    for task in ("plan", "score", "judge", "approve", "commit", "publish", "report"):
        expect(page.get_by_text(task, exact=True).first).to_be_visible()
    shot(page, "grid")


def frame(page: Page) -> FrameLocator:
    return page.frame_locator("iframe[title=Tandem]")


def test_the_page_of_service_levels_frames_the_live_board(page: Page, running: Up) -> None:
    page.goto("/")
    page.get_by_role("link", name="Service levels", exact=True).click()
    board = page.frame_locator("iframe[title='Service levels']").frame_locator("iframe[title='Service levels']")
    expect(board.locator("#state")).to_have_text("live")
    shot(page, "board")


def test_the_page_tandem_lists_the_run_and_shows_its_report(page: Page, accepted: Accepted) -> None:
    page.goto("/")
    page.get_by_role("link", name="Tandem", exact=True).click()
    row = frame(page).locator("#runs tr", has_text=accepted.run.run_id)
    expect(row).to_contain_text("published")
    expect(row).to_contain_text("labels fail (accepted)")
    shot(page, "runs")
    row.locator("a").click()
    report = frame(page).frame_locator("iframe")
    expect(report.locator("h1")).to_contain_text(f"Nightly run of {ACCEPTED}: published, live")
    expect(report.locator("svg").first).to_be_visible()
    shot(page, "report")


def test_hostile_lines_are_text_in_the_report(page: Page, accepted: Accepted, runs: dict[str, str]) -> None:
    page.goto(f"/plugin/tandem/tandem/runs/{REFUSED}/{runs[REFUSED]}")
    report = frame(page).frame_locator("iframe")
    expect(report.get_by_text(HOSTILE_LINE).first).to_be_visible()
    # As a script it would have changed that.
    expect(report.locator("head title")).to_have_js_property("textContent", f"Nightly run of {REFUSED}")
