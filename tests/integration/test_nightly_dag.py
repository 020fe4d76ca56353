"""One real night: Airflow runs the DAG, Spark scores, Delta keeps, Redis serves, the service answers."""

import contextlib
import time
from dataclasses import dataclass

import psutil
import pytest
import redis
from deltalake import DeltaTable
from tandem_stack import calls
from tandem_stack.airflow_api import FINAL, RunState
from tandem_stack.stack import DAG, Stack

from realtime_service.client import Client
from shared_model import keys
from shared_model.demo_messages import FIRST_DAY
from shared_model.releases.store import Release
from shared_model.types import ServingPath

ROWS = 300
RUN_SECONDS = 180.0


@pytest.fixture(scope="module")
def known_dag(running: Stack) -> dict[str, object]:
    """The DAG as Airflow found it, before anybody touched it."""
    return running.api.wait_dag(DAG, 10)


@dataclass(frozen=True)
class Night:
    """One finished run, and every address that one of our processes listened on meanwhile."""

    run: RunState
    listened: set[tuple[str, int]]


@pytest.fixture(scope="module")
def night(running: Stack, known_dag: dict[str, object]) -> Night:
    run_id = running.api.trigger(DAG, str(FIRST_DAY))
    running.api.pause(DAG, False)
    listened: set[tuple[str, int]] = set()
    deadline = time.monotonic() + RUN_SECONDS
    while (run := running.api.run_state(DAG, run_id)).state not in FINAL:
        assert time.monotonic() < deadline, run
        running.check()
        listened |= listening()
        time.sleep(0.5)
    return Night(run, listened)


def listening() -> set[tuple[str, int]]:
    found: set[tuple[str, int]] = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            sockets = process.net_connections("inet")
            found |= {(each.laddr.ip, each.laddr.port) for each in sockets if each.status == psutil.CONN_LISTEN}
    return found


def test_the_dag_is_paused_at_creation(known_dag: dict[str, object]) -> None:
    assert known_dag["is_paused"] is True
    assert known_dag["max_active_runs"] == 1


def test_everything_listens_on_loopback_only(running: Stack, night: Night) -> None:
    # "::ffff:" is how a socket of both families shows an address of the older one.
    addresses = {address.removeprefix("::ffff:") for address, _ in night.listened}

    assert {port for _, port in running.plan.ports().values()} <= {port for _, port in night.listened}
    assert addresses <= {"127.0.0.1", "::1"}


def test_every_task_succeeds(night: Night) -> None:
    assert night.run.partition == str(FIRST_DAY)
    assert night.run.tasks == {"plan": "success", "score": "success", "publish": "success", "report": "success"}
    assert night.run.state == "success"


def test_task_logs_can_be_read_without_log_servers(running: Stack, night: Night) -> None:
    assert "ds=2026-01-14" in running.api.task_log(DAG, night.run.run_id, "report")


def test_the_scores_are_in_the_table(running: Stack, night: Night, release: Release) -> None:
    table = DeltaTable(running.plan.state.scores_table).to_pyarrow_table()

    assert table.num_rows == ROWS
    assert len(set(table["id"].to_pylist())) == ROWS
    assert set(table["release"].to_pylist()) == {release.id}


def test_the_scores_are_published_and_answer_calls(running: Stack, night: Night, release: Release) -> None:
    with redis.Redis.from_url(running.redis_url, decode_responses=True) as client:
        pointer = client.hgetall(keys.epoch_pointer(release.id))
    text = calls.archived_texts(running.plan.state.messages_dir, FIRST_DAY, 1)[0]

    assert pointer["ds"] == str(FIRST_DAY)
    with Client(running.plan.service.grpc_address) as online:
        calls.wait_precomputed(online, text)
        assert online.score(text).path == ServingPath.PRECOMPUTED


def test_only_what_is_triggered_runs(running: Stack, night: Night) -> None:
    assert running.api.run_ids(DAG) == [night.run.run_id]
