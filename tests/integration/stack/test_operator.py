"""An operator in a browser, who signs in, triggers a day by the form, watches the log of its scoring, approves what the
gate refused, and reads the report. Screenshots stay in `.tandem/screenshots`."""

import json
import re
from collections.abc import Iterator

import pytest
from deltalake import DeltaTable
from playwright.sync_api import FrameLocator, Page, expect
from tandem_stack.airflow_api import RunState
from tandem_stack.stack import DAG

from tests.browser import chromium
from tests.integration.stack.conftest import APPROVER, HOSTILE_LINE, REFUSED, ROWS, RUN_SECONDS, Asked, Up, write_day
from tests.realtime_service.conftest import eventually
from tests.stack.helpers import REPOSITORY

#: A day of other labels than the one before that is committed.
DAY, TEXT = "2026-01-17", "where is my card 8"
SHOTS = REPOSITORY / ".tandem" / "screenshots"
#: Pages of Airflow load slowly beside other tests.
PATIENCE_MS = 60_000
SIZE = {"width": 1200, "height": 700}


def shot(page: Page, name: str) -> None:
    page.screenshot(path=SHOTS / f"{name}.png")


@pytest.fixture(scope="module")
def page(running: Up, asked: Asked) -> Iterator[Page]:
    """A page of the approver, who has signed in."""
    expect.set_options(timeout=PATIENCE_MS)
    with chromium() as browser:
        page = browser.new_page(base_url=running.plan.airflow.address, viewport=SIZE)  # type: ignore[arg-type]
        page.set_default_timeout(PATIENCE_MS)
        page.goto("/")
        page.get_by_label("Username").fill(APPROVER)
        page.get_by_label("Password").fill(running.plan.airflow.password(APPROVER))
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("link", name="Tandem", exact=True)).to_be_visible()
        yield page


@pytest.fixture(scope="module")
def run_id(running: Up, page: Page) -> str:
    """The run that the trigger form has started."""
    lines = (json.dumps({"id": f"m{number}", "text": TEXT}) for number in range(ROWS))
    write_day(running, DAY, "\n".join(lines))
    before = set(running.api.run_ids(DAG))
    page.goto(f"/dags/{DAG}")
    page.get_by_role("button", name="Trigger Dag").click()
    form = page.get_by_role("dialog")
    form.locator("#element_day").fill(DAY)
    shot(page, "form")
    form.get_by_role("button", name="Trigger", exact=True).click()
    eventually(lambda: set(running.api.run_ids(DAG)) - before, 60, every=0.5)
    (started,) = set(running.api.run_ids(DAG)) - before
    return started


@pytest.fixture(scope="module")
def watched(page: Page, run_id: str) -> None:
    """The log of `score`, from a page that is opened before the task has ended and not loaded again."""
    page.goto(f"/dags/{DAG}/runs/{run_id}/tasks/score")
    expect(page.get_by_text(f"ds={DAY}: release tiny").first).to_be_visible(timeout=RUN_SECONDS * 1000)
    expect(page.get_by_text(re.compile(f"batch_job score: ds={DAY}: .*labels")).first).to_be_visible(
        timeout=RUN_SECONDS * 1000
    )
    shot(page, "log")


@pytest.fixture(scope="module")
def approved(running: Up, page: Page, run_id: str, watched: None) -> RunState:
    """The run after the approver has clicked."""
    running.api.wait_question(DAG, run_id, "approve", RUN_SECONDS)
    page.goto(f"/dags/{DAG}/runs/{run_id}/tasks/approve/required_actions")
    # The comment stays empty.
    shot(page, "approval")
    page.get_by_role("button", name="Approve", exact=True).click()
    return running.api.wait_run(DAG, run_id, RUN_SECONDS)


def test_the_form_starts_the_day_that_was_typed(running: Up, run_id: str) -> None:
    assert running.api.run_state(DAG, run_id).partition == DAY


def test_the_log_of_a_task_that_runs_grows_on_the_page(watched: None) -> None:
    """By the fixture."""


def test_a_click_approves_and_the_commit_has_the_name(running: Up, approved: RunState) -> None:
    assert (approved.state, approved.tasks["commit"]) == ("success", "success")
    assert approved.note.endswith(f"accepted by {APPROVER}")
    facts = next(it for it in DeltaTable(running.plan.state.scores_table).history() if it.get("tandem.ds") == DAY)
    assert (facts["tandem.approved_by"], facts["tandem.approval_comment"]) == (APPROVER, "")


def test_the_grid_shows_each_task_of_the_run(page: Page, approved: RunState) -> None:
    page.goto(f"/dags/{DAG}/runs/{approved.run_id}")
    for task in ("plan", "score", "judge", "approve", "commit", "publish", "report"):
        expect(page.get_by_text(task, exact=True).first).to_be_visible()
    shot(page, "grid")


def frame(page: Page) -> FrameLocator:
    return page.frame_locator("iframe[title=Tandem]")


def test_the_page_tandem_lists_the_run_and_shows_its_report(page: Page, approved: RunState) -> None:
    page.goto("/")
    page.get_by_role("link", name="Tandem", exact=True).click()
    row = frame(page).locator("#runs tr", has_text=approved.run_id)
    expect(row).to_contain_text("published")
    expect(row).to_contain_text("labels fail (accepted)")
    shot(page, "runs")
    row.locator("a").click()
    report = frame(page).frame_locator("iframe")
    expect(report.locator("h1")).to_contain_text(f"Nightly run of {DAY}: published, live")
    expect(report.locator("svg").first).to_be_visible()
    shot(page, "report")


def test_hostile_lines_are_text_in_the_report(page: Page, approved: RunState, runs: dict[str, str]) -> None:
    page.goto(f"/plugin/tandem/tandem/runs/{REFUSED}/{runs[REFUSED]}")
    report = frame(page).frame_locator("iframe")
    expect(report.get_by_text(HOSTILE_LINE).first).to_be_visible()
    # As a script it would have changed that.
    expect(report.locator("head title")).to_have_js_property("textContent", f"Nightly run of {REFUSED}")
