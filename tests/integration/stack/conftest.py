"""The whole local stack, as `make up` starts it, in a state and on ports of its own, and real nights in it: one that
succeeds, one that the gate refuses, one that a person accepts in a browser, one that no answer comes for, one whose
messages are missing, and one of no day. The tests of this folder share it; those of `test_stopping.py` come last."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from playwright.sync_api import Page
from tandem_stack import airflow_api, airflow_standalone, stack
from tandem_stack.airflow_api import FINAL, AirflowApi, RunState
from tandem_stack.checks import Problem
from tandem_stack.stack import DAG, Plan

from shared_model import demo_messages, settings
from shared_model.demo_messages import FIRST_DAY
from shared_model.releases.store import Release
from shared_model.settings import StateSettings
from tests import otlp
from tests.integration.stack import browsing
from tests.otlp import Collector
from tests.realtime_service.conftest import eventually
from tests.sink import Sink
from tests.stack.helpers import REPOSITORY

#: Of one day, so few that Spark's start is what takes the time, and enough for the gate to compare labels.
ROWS = 1_000
#: The user who may accept a refused run, and how long that waits: an answer takes a second.
APPROVER, APPROVAL_SECONDS = "ada", 90
START_SECONDS = 120.0
#: A run is late after this. The one that waits for messages always is.
LATE_SECONDS = 60
SPARK = "http://spark.example/"
RUN_SECONDS, POLL_SECONDS = 400.0, 1.0
REFUSED, INTERRUPTED = "2026-01-20", "2026-01-21"
ACCEPTED, UNANSWERED, REJECTED, COMMENTED = "2026-01-15", "2026-01-16", "2026-01-17", "2026-01-18"
#: No JSON, and markup: reports show quarantined lines.
HOSTILE_LINE = "<script>document.title=1</script>"
#: Days of another label than the one committed before. The rejected day is not committed.
SHIFTED = {
    ACCEPTED: "my card is slowly 7",
    **dict.fromkeys((UNANSWERED, COMMENTED, REJECTED), "where is my card 8"),
}


@dataclass(frozen=True)
class Up:
    """`make up` in a process of its own. Its output is in a file."""

    process: "subprocess.Popen[bytes]"
    output: Path
    plan: Plan
    api: AirflowApi

    def descendants(self) -> list[psutil.Process]:
        assert self.process.poll() is None, self.output.read_text()
        return psutil.Process(self.process.pid).children(recursive=True)


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def own_environ(state: Path, releases: Path) -> dict[str, str]:
    """Settings under which a stack meets no other on this machine, and writes no messages of the demo."""
    airflow, metrics = free_address(), free_address()
    return {
        "TANDEM_STATE": str(state),
        "TANDEM_MESSAGES": str(state / "messages"),
        "TANDEM_RELEASES": str(releases),
        "TANDEM_AIRFLOW_PORT": airflow.rpartition(":")[2],
        "TANDEM_GRPC_ADDRESS": free_address(),
        "TANDEM_METRICS_ADDRESS": metrics,
        # The damaged lines of so small a day are more than a gate would let pass, and fewer than those of REFUSED.
        "TANDEM_QUARANTINE_SHARE": "0.04",
        "TANDEM_APPROVERS": APPROVER,
        "TANDEM_APPROVAL_SECONDS": str(APPROVAL_SECONDS),
        "TANDEM_LATE_SECONDS": str(LATE_SECONDS),
        "TANDEM_SPARK_URL": SPARK,
        "TANDEM_SLA_BOARD_URL": f"http://{metrics}/board",
        "TANDEM_BOARD_FRAMES": f"http://{airflow}",
        # Beside other tests an idle priority may mean none.
        "TANDEM_NIGHTLY_IDLE": "false",
    }


class Answer(NamedTuple):
    code: int
    headers: HTTPMessage
    text: str


def ask(running: Up, path: str, token: str = "", body: object = None, method: str = "POST") -> Answer:
    """One call of the API server: GET, or of a body with this method."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    with contextlib.closing(HTTPConnection("127.0.0.1", running.plan.airflow.port, timeout=60)) as connection:
        sent = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else method, path, sent, headers)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read().decode())


@pytest.fixture(scope="package")
def alerts() -> Iterator[Sink]:
    """It takes what the connection `tandem_alerts` sends."""
    with Sink() as sink:
        yield sink


@pytest.fixture(scope="package")
def traces() -> Iterator[Collector]:
    """It takes the spans of all that the stack starts."""
    with otlp.collecting() as collector:
        yield collector


@contextlib.contextmanager
def up(folder: Path, releases: Path, **environ: str) -> Iterator[Up]:
    """`make up` with an archive of one day."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**own_environ(folder / "state", releases), **environ}.items():
            patch.setenv(name, value)
        plan = stack.plan(settings.load(StateSettings), scheduled=True)
        command, own = [sys.executable, "-m", "tandem_stack", "up"], {"PYTHONPATH": str(REPOSITORY / ".stack")}
        with open(folder / "output", "wb") as output:
            # The umask of a shell where other users may read its files.
            process = subprocess.Popen(
                command, env=os.environ | own, cwd=REPOSITORY, stdout=output, stderr=output, umask=0o022
            )
    with pytest.MonkeyPatch.context() as patch:
        # Each look costs the API server 0.05 CPU seconds.
        patch.setattr(airflow_api, "_POLL_SECONDS", POLL_SECONDS)
        try:
            eventually(lambda: said(process, folder / "output", "Ctrl-C stops everything."), START_SECONDS, every=0.2)
            # Not sooner: the first to ask for the password makes its folder.
            api = AirflowApi(plan.airflow.address, airflow_standalone.USER, plan.airflow.password())
            api.wait_ready(START_SECONDS)
            demo_messages.write_archive(plan.state.messages_dir, ROWS, days=1)
            yield Up(process, folder / "output", plan, api)
        finally:
            end(process)


@pytest.fixture(scope="package")
def running(
    own_environment: None,
    release: Release,
    releases_dir: Path,
    alerts: Sink,
    traces: Collector,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Up]:
    told = json.dumps({"conn_type": "slackwebhook", "host": alerts.address})
    own = {"AIRFLOW_CONN_TANDEM_ALERTS": told, "OTEL_EXPORTER_OTLP_ENDPOINT": traces.url}
    with up(tmp_path_factory.mktemp("stack"), releases_dir, **own) as started:
        yield started


def said(process: "subprocess.Popen[bytes]", output: Path, line: str) -> bool:
    """Whether a process, which must live, has written a line."""
    assert process.poll() is None, output.read_text()
    return line in output.read_text()


def end(process: "subprocess.Popen[bytes]") -> None:
    """By Ctrl-C, unless it has ended; what is left then is killed."""
    started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    process.kill()
    process.wait()
    for left in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()


@pytest.fixture(scope="package")
def due(running: Up) -> str:
    """The id of the run that the schedule has started, of a day without messages."""
    eventually(lambda: running.api.run_ids(DAG), every=0.2)
    (run_id,) = running.api.run_ids(DAG)
    return run_id


@dataclass(frozen=True)
class Night:
    """One finished run, and every address that one of our processes listened on meanwhile."""

    run: RunState
    listened: set[tuple[str, int]]


@pytest.fixture(scope="package")
def runs(running: Up, due: str) -> dict[str, str]:
    """Run ids by day, in the order they were triggered: by partition key, and as the trigger form does it."""
    lines = [*(json.dumps({"id": f"m{number}", "text": "hello"}) for number in range(95)), *[HOSTILE_LINE] * 5]
    write_day(running, REFUSED, "\n".join(lines))
    asked: dict[str, tuple[dict[str, str], str | None]] = {
        "": ({}, None),
        str(FIRST_DAY): ({}, str(FIRST_DAY)),
        REFUSED: ({"day": REFUSED}, None),
    }
    return {day: running.api.trigger(DAG, *how) for day, how in asked.items()}


def write_day(running: Up, day: str, lines: str) -> None:
    folder = running.plan.state.messages_dir / f"ds={day}"
    folder.mkdir()
    (folder / "messages.jsonl").write_text(lines)


@pytest.fixture(scope="package")
def night(running: Up, runs: dict[str, str]) -> Night:
    listened: set[tuple[str, int]] = set()
    deadline = time.monotonic() + RUN_SECONDS
    while (run := running.api.run_state(DAG, runs[str(FIRST_DAY)])).state not in FINAL:
        assert time.monotonic() < deadline, run
        listened |= listening(running)
        time.sleep(POLL_SECONDS)
    return Night(run, listened)


def listening(running: Up) -> set[tuple[str, int]]:
    found: set[tuple[str, int]] = set()
    for process in running.descendants():
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            sockets = process.net_connections("inet")
            found |= {(each.laddr.ip, each.laddr.port) for each in sockets if each.status == psutil.CONN_LISTEN}
    return found


@dataclass(frozen=True)
class Beside:
    """A day that was backfilled while another one waited for a person: its run, the waiting one's tasks after that, and
    the pool of the device."""

    run: RunState
    waiting: dict[str, str]
    pool: dict[str, Any]


@dataclass(frozen=True)
class Accepted:
    """A run that was refused and then approved: why the form refused wrong values before it, its question, the refusal
    of a user who may not answer, by the API and after a click, the pixels across of its plot in the browser, and its
    end."""

    form: dict[str, str]
    question: dict[str, Any]
    intruder: str
    denied: str
    plot_pixels: int
    run: RunState


@dataclass(frozen=True)
class Unanswered:
    """The run of a day whose question gets no answer, and a backfill beside it."""

    run_id: str
    beside: Beside


@pytest.fixture(scope="package")
def page(running: Up, night: Night) -> Iterator[Page]:
    """A page of the approver, who has signed in."""
    with browsing.signed_in(running.plan.airflow, APPROVER) as page:
        yield page


@pytest.fixture(scope="package")
def accepted(running: Up, page: Page) -> Accepted:
    # The administrator is not an approver.
    stranger = browsing.beside(page, running.plan.airflow, airflow_standalone.USER)
    write_shifted(running, ACCEPTED)
    started = browsing.trigger(page, running.api, ACCEPTED)
    browsing.watch_scoring(page, running.api, started.run_id, ACCEPTED, RUN_SECONDS)
    question = running.api.wait_question(DAG, started.run_id, "approve", RUN_SECONDS)
    with pytest.raises(Problem) as refused:
        running.api.answer(DAG, started.run_id, "approve", "Approve")
    denied = browsing.approve_in_vain(stranger, started.run_id)
    pixels = browsing.approve(page, running.api, started.run_id)
    run = running.api.wait_run(DAG, started.run_id, RUN_SECONDS)
    return Accepted(started.refused, question, str(refused.value), denied, pixels, run)


@pytest.fixture(scope="package")
def unanswered(running: Up, page: Page, accepted: Accepted) -> Unanswered:
    """Compared with the day that was accepted."""
    write_shifted(running, UNANSWERED)
    run_id = running.api.trigger(DAG, {"day": UNANSWERED})
    return Unanswered(run_id, backfill(running, page, run_id))


def write_shifted(running: Up, day: str) -> None:
    lines = (json.dumps({"id": f"m{number}", "text": SHIFTED[day]}) for number in range(ROWS))
    write_day(running, day, "\n".join(lines))


def backfill(running: Up, page: Page, waiting: str) -> Beside:
    """The first day once more, by its key, while a run waits for a person."""
    running.api.wait_question(DAG, waiting, "approve", RUN_SECONDS)
    run_id = browsing.backfill(page, running.api, str(FIRST_DAY))
    run = running.api.wait_run(DAG, run_id, RUN_SECONDS)
    pool = json.loads(ask(running, "/api/v2/pools/tandem_device", running.api.token).text)
    return Beside(run, running.api.run_state(DAG, waiting).tasks, pool)


def task_log(running: Up, run_id: str, task: str, dag: str = DAG) -> str:
    return "\n".join(str(line["event"]) for line in running.api.task_events(dag, run_id, task))
