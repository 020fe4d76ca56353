"""The routes of the page *Tandem*, which Airflow's API server mounts.

A mounted application gets no login from Airflow. Every route depends on Airflow's authentication, and on the right to
read the runs of `nightly_scoring`. Reports hold texts of users: they run no script, even where escaping had failed, and
no cache keeps them.
"""

from collections.abc import Sequence
from datetime import date
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.models.dagrun import DagRun
from airflow.models.deadline import Deadline
from fastapi import Depends, FastAPI, Request
from fastapi import Path as InPath
from fastapi.responses import HTMLResponse, PlainTextResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy import select

from batch_job.launch import operating, spark_submit
from dags.pages import runtime
from dags.pages.runtime import Unreadable

DAG_ID = "nightly_scoring"
#: Most missed deadlines that are shown.
MISSED = 50

_STYLED = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
#: Of our own pages, which frame a report.
_PAGE = f"{_STYLED}; frame-src 'self'"
#: Of the page that frames the board of both service levels, whose origin is filled in.
_BOARD = f"{_STYLED}; frame-src {{}}"
#: Of a report: an origin of its own, no script, no network.
_REPORT = f"sandbox; {_STYLED}; img-src data:"
_KEPT_NOWHERE = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)

#: A day and the name of a run's record; a slash in it would lead to another folder.
Run = Annotated[str, InPath(pattern=r"^[^/\x00-\x1f]+$")]

app = FastAPI(
    # Their routes would have no dependency.
    openapi_url=None,
    dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN, DAG_ID))],
)


def missed_deadlines(session: SessionDep) -> list[dict[str, Any]]:
    """The latest runs of the DAG that missed their deadline, whether or not they have a record yet."""
    found = session.execute(
        select(DagRun.run_id, DagRun.partition_key, DagRun.conf, DagRun.state, Deadline.deadline_time)
        .join(Deadline.dagrun)
        .where(DagRun.dag_id == DAG_ID, Deadline.missed)
        .order_by(Deadline.deadline_time.desc())
        .limit(MISSED)
    )
    return [
        {"run": run, "day": spark_submit.day_of(key, conf), "state": str(state), "due": f"{due:%Y-%m-%d %H:%M:%S} UTC"}
        for run, key, conf, state, due in found
    ]


@app.get("/")
async def list_runs(missed: Annotated[list[dict[str, Any]], Depends(missed_deadlines)]) -> HTMLResponse:
    try:
        runs, problem = await runtime.runs(), ""
    except Unreadable as error:
        runs, problem = [], str(error)
    late = {operating.run_name(it["run"], model) for it in missed for model in ("", *operating.further_models())}
    return _html("runs.html", runs=runs, problem=problem, missed=missed, late=late)


@app.get("/runs/{day}/{run}")
def frame_report(day: date, run: Run) -> HTMLResponse:
    return _html("report.html", day=str(day), run=run)


@app.get("/board")
def frame_board(request: Request) -> HTMLResponse:
    """Where browsers would refuse to frame it, over HTTP in a page over HTTPS, a link alone."""
    board = urlsplit(operating.link(operating.BOARD_URL))
    if not board.netloc:
        raise Unreadable(f"there is no board: set {operating.BOARD_URL}")
    framed = operating.may_frame(board.geturl(), request.url.scheme)
    page = _TEMPLATES.get_template("board.html").render(board=board.geturl(), framed=framed)
    return _response(page, _BOARD.format(f"{board.scheme}://{board.netloc}"))


@app.get("/runs/{day}/{run}/report.html")
async def show_report(day: date, run: Run) -> HTMLResponse:
    return _response(await runtime.report(str(day), run), _REPORT)


@app.get("/runs/{day}/{run}/labels.svg")
async def show_picture(day: date, run: Run) -> HTMLResponse:
    return _response(await runtime.picture(str(day), run), _REPORT, "image/svg+xml")


@app.exception_handler(Unreadable)
async def not_found(request: Request, error: Exception) -> PlainTextResponse:
    return PlainTextResponse(str(error), HTTPStatus.NOT_FOUND, _KEPT_NOWHERE)


@app.exception_handler(TimeoutError)
async def too_slow(request: Request, error: Exception) -> PlainTextResponse:
    line = f"the run records could not be read within {runtime.SECONDS:g} s; try again, or look at the store"
    return PlainTextResponse(line, HTTPStatus.GATEWAY_TIMEOUT, _KEPT_NOWHERE)


def _html(template: str, **values: object) -> HTMLResponse:
    return _response(_TEMPLATES.get_template(template).render(**values), _PAGE)


def _response(page: str, policy: str, kind: str = "text/html") -> HTMLResponse:
    return HTMLResponse(page, headers={**_KEPT_NOWHERE, "Content-Security-Policy": policy}, media_type=kind)


def gates(verdicts: Sequence[dict[str, Any]]) -> str:
    """The outcomes of the gates in one line."""
    return ", ".join(f"{it['gate']} {it['outcome']}{' (accepted)' if it['accepted'] else ''}" for it in verdicts)


_TEMPLATES.filters["gates"] = gates
