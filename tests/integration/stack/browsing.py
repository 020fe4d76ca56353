"""An approver in a browser, who signs in, triggers a day by the form, watches the log of its scoring and approves it.
Screenshots stay in `.tandem/screenshots`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, expect
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


def shot(page: Page, name: str) -> None:
    page.screenshot(path=SHOTS / f"{name}.png")


@contextmanager
def signed_in(airflow: Airflow, user: str) -> Iterator[Page]:
    expect.set_options(timeout=PATIENCE_MS)
    with chromium() as browser:
        page = browser.new_page(base_url=airflow.address, viewport=SIZE)  # type: ignore[arg-type]
        page.set_default_timeout(PATIENCE_MS)
        page.goto("/")
        page.get_by_label("Username").fill(user)
        page.get_by_label("Password").fill(airflow.password(user))
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("link", name="Tandem", exact=True)).to_be_visible()
        yield page


def trigger(page: Page, api: AirflowApi, day: str) -> str:
    """The run that the trigger form starts."""
    before = set(api.run_ids(DAG))
    page.goto(f"/dags/{DAG}")
    page.get_by_role("button", name="Trigger Dag").click()
    form = page.get_by_role("dialog")
    form.locator("#element_day").fill(day)
    shot(page, "form")
    form.get_by_role("button", name="Trigger", exact=True).click()
    eventually(lambda: set(api.run_ids(DAG)) - before, 60, every=0.5)
    (started,) = set(api.run_ids(DAG)) - before
    page.goto(NOTHING)
    return started


def watch_scoring(page: Page, api: AirflowApi, run_id: str, day: str, seconds: float) -> None:
    """The log of `score` grows, on a page that is opened before the task has ended and not loaded again."""
    api.wait_started(DAG, run_id, "score", seconds)
    page.goto(f"/dags/{DAG}/runs/{run_id}/tasks/score")
    for line in (f"ds={day}: release tiny", re.compile(f"batch_job score: ds={day}: .*labels")):
        expect(page.get_by_text(line).first).to_be_visible(timeout=seconds * 1000)
    shot(page, "log")
    page.goto(NOTHING)


def approve(page: Page, api: AirflowApi, run_id: str) -> int:
    """The comment stays empty. Returns the pixels across of the question's plot, as it was loaded."""
    page.goto(f"/dags/{DAG}/runs/{run_id}/tasks/approve/required_actions")
    plot = page.get_by_role("img", name="Shares of the labels")
    expect(plot).to_be_visible()
    expect(plot).to_have_js_property("complete", True)
    pixels = int(plot.evaluate("it => it.naturalWidth"))
    shot(page, "approval")
    page.get_by_role("button", name="Approve", exact=True).click()
    eventually(lambda: api.run_state(DAG, run_id).tasks["approve"] == "success", 60, every=0.5)
    page.goto(NOTHING)
    return pixels
