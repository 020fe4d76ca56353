"""The page *Tandem* on the real API server: who may read it, and what a browser may do with it."""

import configparser
import json
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote
from xml.etree import ElementTree

import jwt
import pytest

from batch_job import run_record
from batch_job.reporting.cost import cost_per_million
from batch_job.settings import NightlySettings
from shared_model.demo_messages import FIRST_DAY
from tests.integration.stack.conftest import HOSTILE_LINE, REFUSED, Night, Up, ask

#: A run's name that a browser must not take for markup, nor a server for a path.
HOSTILE_RUN = '<img src=x onerror="alert(1)">?#%2F'
ROUTES = ("/tandem/", "/tandem/board", f"/tandem/runs/{FIRST_DAY}/x", f"/tandem/runs/{FIRST_DAY}/x/report.html")
ROUTES = (*ROUTES, f"/tandem/runs/{FIRST_DAY}/x/labels.svg")


@pytest.fixture
def admin(running: Up) -> str:
    return running.api.token


def signed(running: Up, admin: str, **claims: str | None) -> str:
    """The administrator's token with other claims, signed by Airflow's key."""
    settings = configparser.RawConfigParser(strict=False)
    settings.read(running.plan.airflow.home / "airflow.cfg")
    known = jwt.decode(admin, options={"verify_signature": False})
    algorithm = jwt.get_unverified_header(admin)["alg"]
    return jwt.encode({**known, **claims}, settings["api_auth"]["jwt_secret"], algorithm)


@pytest.mark.parametrize("path", ROUTES)
def test_it_is_read_with_a_login_alone(running: Up, path: str) -> None:
    assert ask(running, path).code == 401
    assert ask(running, path, "no-token").code == 403


@pytest.mark.parametrize("path", ROUTES)
def test_a_user_without_the_right_to_the_dag_is_refused(running: Up, admin: str, path: str) -> None:
    stranger = ask(running, path, signed(running, admin, sub="stranger", role=None))
    assert (stranger.code, json.loads(stranger.text)) == (403, {"detail": "Forbidden"})
    # The least of those who may read the DAG: the token above was good.
    assert ask(running, path, signed(running, admin, sub="reader", role="viewer")).code in (200, 404)


@pytest.mark.parametrize("path", ["/tandem/openapi.json", "/tandem/docs", "/tandem/redoc"])
def test_no_route_is_there_that_asks_for_no_login(running: Up, path: str) -> None:
    assert ask(running, path).code in (401, 404)


def test_it_is_in_the_navigation(running: Up, admin: str) -> None:
    plugins = {it["name"]: it for it in json.loads(ask(running, "/api/v2/plugins", admin).text)["plugins"]}
    views = [(it["name"], it["href"], it["destination"]) for it in plugins["tandem_page"]["external_views"]]
    assert views == [("Tandem", "/tandem/", "nav"), ("Service levels", "/tandem/board", "nav")]
    assert json.loads(ask(running, "/api/v2/plugins/importErrors", admin).text)["import_errors"] == []


def test_the_page_of_service_levels_may_frame_the_board_and_nothing_else(running: Up, admin: str) -> None:
    page, origin = ask(running, "/tandem/board", admin), f"http://{running.plan.service.metrics_address}"
    policy = [part.strip() for part in str(page.headers["Content-Security-Policy"]).split(";")]
    assert page.code == 200
    assert [part for part in policy if part.startswith("frame-src")] == [f"frame-src {origin}"]
    assert "default-src 'none'" in policy
    assert f'<iframe src="{origin}/board" sandbox=' in page.text


def test_it_lists_runs_with_rows_rate_cost_quarantine_and_gates(running: Up, night: Night, admin: str) -> None:
    page = ask(running, "/tandem/", admin)
    record = run_record.read(running.plan.state.runs_dir / str(FIRST_DAY) / f"{night.run.run_id}.json")
    scoring = record.scoring
    assert scoring
    assert page.code == 200
    row = next(part for part in page.text.split("<tr>") if night.run.run_id in part)
    cost = cost_per_million(NightlySettings().price_per_hour, scoring.rows_per_second)
    figures = (f">{scoring.rows:,}<", f">{scoring.rows_per_second:,.0f}<", f">{cost:,.2f}<")
    shown = ("tiny", "published", *figures, "counts ok")
    assert [it for it in (*shown, f">{sum(scoring.quarantined.values())}<", str(FIRST_DAY)) if it not in row] == []


def test_a_report_is_shown_in_a_frame_that_runs_nothing_and_is_kept_nowhere(
    running: Up, night: Night, admin: str
) -> None:
    path = f"/tandem/runs/{FIRST_DAY}/{quote(night.run.run_id, safe='')}"
    outer, report = ask(running, path, admin), ask(running, f"{path}/report.html", admin)
    policy = {part.strip() for part in str(report.headers["Content-Security-Policy"]).split(";")}
    assert (outer.code, report.code) == (200, 200)
    assert {"sandbox", "default-src 'none'", "style-src 'unsafe-inline'", "img-src data:"} <= policy
    assert "sandbox title=" in outer.text
    assert f"Nightly run of {FIRST_DAY}: published, live" in report.text
    for answer in (outer, report, ask(running, "/tandem/", admin)):
        assert "script-src" not in str(answer.headers["Content-Security-Policy"])
        assert "default-src 'none'" in str(answer.headers["Content-Security-Policy"])
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_the_plot_of_the_labels_is_a_picture_that_runs_nothing_and_is_kept_nowhere(
    running: Up, night: Night, admin: str
) -> None:
    answer = ask(running, f"/tandem/runs/{FIRST_DAY}/{quote(night.run.run_id, safe='')}/labels.svg", admin)
    assert (answer.code, answer.headers.get_content_type()) == (200, "image/svg+xml")
    assert ElementTree.fromstring(answer.text).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 (our own)
    assert "sandbox" in str(answer.headers["Content-Security-Policy"])
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.fixture
def hostile(running: Up, night: Night, runs: dict[str, str]) -> Iterator[str]:
    """The name of a refused run with hostile lines, which a person has given its record a hostile name."""
    running.api.wait_run("nightly_scoring", runs[REFUSED], 220)
    folder = running.plan.state.runs_dir / REFUSED
    record = run_record.read(folder / f"{runs[REFUSED]}.json")
    path = folder / f"{HOSTILE_RUN}.json"
    run_record.write(path, replace(record, run_id=HOSTILE_RUN))
    yield HOSTILE_RUN
    path.unlink()


def test_hostile_texts_and_names_are_shown_as_text(running: Up, hostile: str, admin: str) -> None:
    path = f"/tandem/runs/{REFUSED}/{quote(hostile, safe='')}"
    pages = [ask(running, it, admin) for it in ("/tandem/", path, f"{path}/report.html")]
    assert [page.code for page in pages] == [200] * 3
    for page in pages:
        assert "&lt;img src=x onerror=&#34;alert(1)&#34;&gt;" in page.text
        assert not any(tag in page.text for tag in ("<img", "<script", 'onerror="'))
    assert HOSTILE_LINE.replace("<", "&lt;").replace(">", "&gt;") in pages[2].text
    assert f'href="runs/{REFUSED}/{quote(hostile)}"' in pages[0].text


@pytest.mark.parametrize(
    "path", ["2026-01-14/..%2F..%2Fpasswords", "..%2Fairflow/passwords", "2026-13-01/x", "x/y", "2026-01-14/a%00b"]
)
def test_a_path_out_of_the_records_is_refused(running: Up, admin: str, path: str) -> None:
    assert ask(running, f"/tandem/runs/{path}/report.html", admin).code in (404, 422)


def test_a_run_without_a_record_is_refused_in_one_line(running: Up, admin: str) -> None:
    answer = ask(running, f"/tandem/runs/{FIRST_DAY}/none/report.html", admin)
    assert (answer.code, answer.headers.get_content_type()) == (404, "text/plain")
    assert answer.text.startswith("batch_job report: ")
    assert len(answer.text.splitlines()) == 1
