"""People in a browser: an approver, who signs in, triggers a day by the form, watches the log of its scoring, approves
it and backfills another, and one who is not an approver. Screenshots stay in `.tandem/screenshots`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from playwright.sync_api import Browser, Locator, Page, expect
from tandem_stack.airflow_api import AirflowApi
from tandem_stack.airflow_standalone import Airflow
from tandem_stack.stack import DAG

from tests.browser import chromium
from tests.realtime_service.conftest import eventually
from tests.stack.helpers import REPOSITORY

SHOTS = REPOSITORY / ".tandem" / "screenshots"
#: Pages of Airflow load slowly beside other tests.
PATIENCE_MS = 60_000
#: Between two looks: a page of Airflow asks for news all the time, which costs as much as a night.
NOTHING = "about:blank"
SIZE = {"width": 1200, "height": 700}
#: 30 February, by the keys of a field for a date, and a name with spaces.
WRONG_DAY, WRONG_MODEL = "02302026", "my model; rm"


class Started(NamedTuple):
    """The run that a form started, and why the form had refused wrong values before, by field."""

    run_id: str
    refused: dict[str, str]


def shot(page: Page, name: str) -> None:
    page.screenshot(path=SHOTS / f"{name}.png")


@contextmanager
def signed_in(airflow: Airflow, user: str) -> Iterator[Page]:
    expect.set_options(timeout=PATIENCE_MS)
    with chromium() as browser:
        yield sign_in(browser, airflow, user)


def sign_in(browser: Browser, airflow: Airflow, user: str) -> Page:
    """A page with cookies of its own."""
    page = browser.new_page(base_url=airflow.address, viewport=SIZE)  # type: ignore[arg-type]
    page.set_default_timeout(PATIENCE_MS)
    page.goto("/")
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(airflow.password(user))
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("link", name="Tandem", exact=True)).to_be_visible()
    page.goto(NOTHING)
    return page


def beside(page: Page, airflow: Airflow, user: str) -> Page:
    """A page of another user in the same browser."""
    browser = page.context.browser
    assert browser
    return sign_in(browser, airflow, user)


def open_form(page: Page) -> Locator:
    page.goto(f"/dags/{DAG}")
    page.get_by_role("button", name="Trigger Dag").click()
    # Choosers of a moment are dialogues, too.
    return page.get_by_role("dialog").filter(has_text="Single Run")


def trigger(page: Page, api: AirflowApi, day: str) -> Started:
    """By the trigger form, which is given wrong values, too."""
    before = set(api.run_ids(DAG))
    form = open_form(page)
    form.locator("#element_day").fill(day)
    shot(page, "form")
    refused = give_wrong_values(page, form)
    form.get_by_role("button", name="Trigger", exact=True).press("Enter")
    return Started(new_run(page, api, before), refused)


def give_wrong_values(page: Page, form: Locator) -> dict[str, str]:
    """Why the form refuses them, by field. It stays open, and has right ones again."""
    day, model = form.locator("#element_day"), form.locator("#element_model")
    send = form.get_by_role("button", name="Trigger", exact=True)
    right = day.input_value()
    day.focus()
    page.keyboard.type(WRONG_DAY)
    expect(send).to_be_disabled()
    of_day = form.locator("[data-part=error-text]").inner_text()
    day.fill(right)
    model.fill(WRONG_MODEL)
    # A click would leave the pointer where a notice comes up, which then stays and covers the button.
    send.press("Enter")
    of_model = form.get_by_text("Invalid input for param").first
    of_model.scroll_into_view_if_needed()
    why = of_model.inner_text()
    shot(page, "refused")
    model.fill("")
    return {"day": of_day, "model": why}


def new_run(page: Page, api: AirflowApi, before: set[str]) -> str:
    """The only run that is there beside these."""
    eventually(lambda: set(api.run_ids(DAG)) - before, every=0.5)
    (started,) = set(api.run_ids(DAG)) - before
    page.goto(NOTHING)
    return started


def backfill(page: Page, api: AirflowApi, day: str) -> str:
    """The run of one day's key, once more, by the form."""
    before = set(api.run_ids(DAG))
    form = open_form(page)
    form.get_by_text("Backfill", exact=True).click()
    # The moment of a day is 02:00.
    for field, moment in (("From", "00:00"), ("To", "12:00")):
        form.get_by_text("Select date and time").first.click()
        # The one before it closes slowly.
        chooser = page.get_by_role("dialog").filter(has=page.get_by_role("textbox", name=field, exact=True)).last
        chooser.get_by_placeholder("YYYY/MM/DD").fill(day.replace("-", "/"))
        chooser.get_by_placeholder("HH:mm").fill(moment)
        page.keyboard.press("Enter")
    form.get_by_text("All Runs", exact=True).click()
    expect(form.get_by_text("1 run will be triggered.")).to_be_visible()
    shot(page, "backfill")
    form.get_by_role("button", name="Run Backfill").click()
    return new_run(page, api, before)


def watch_scoring(page: Page, api: AirflowApi, run_id: str, day: str, seconds: float) -> None:
    """The log of `score` grows, on a page that is opened before the task has ended and not loaded again."""
    api.wait_started(DAG, run_id, "score", seconds)
    page.goto(f"/dags/{DAG}/runs/{run_id}/tasks/score")
    for line in (f"ds={day}: release tiny", re.compile(f"batch_job score: ds={day}: .*labels")):
        expect(page.get_by_text(line).first).to_be_visible(timeout=seconds * 1000)
    shot(page, "log")
    page.goto(NOTHING)


def open_question(page: Page, run_id: str) -> Locator:
    """The button that approves."""
    page.goto(f"/dags/{DAG}/runs/{run_id}/tasks/approve/required_actions")
    return page.get_by_role("button", name="Approve", exact=True)


def approve_in_vain(page: Page, run_id: str) -> str:
    """Returns what the page says then."""
    open_question(page, run_id).click()
    said = page.get_by_role("status").filter(has_text="Denied").inner_text()
    shot(page, "denied")
    page.close()
    return said


def approve(page: Page, api: AirflowApi, run_id: str) -> int:
    """The comment stays empty. Returns the pixels across of the question's plot, as it was loaded."""
    button = open_question(page, run_id)
    plot = page.get_by_role("img", name="Shares of the labels")
    expect(plot).to_be_visible()
    expect(plot).to_have_js_property("complete", True)
    pixels = int(plot.evaluate("it => it.naturalWidth"))
    shot(page, "approval")
    button.click()
    eventually(lambda: api.run_state(DAG, run_id).tasks["approve"] == "success", every=0.5)
    page.goto(NOTHING)
    return pixels
