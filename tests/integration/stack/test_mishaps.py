"""Mishaps on the real scheduler: a killed driver, JVM, task, supervisor of a task or API server, a Redis that does not
answer while a night is published, one day that is triggered twice, and a release that is promoted meanwhile."""

import contextlib
import json
from collections.abc import Iterator

import psutil
import pytest
import redis
from deltalake import DeltaTable
from tandem_stack.airflow_api import RunState
from tandem_stack.stack import DAG

from batch_job import run_record
from batch_job.run_record import RunRecord, State
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from tests.integration.stack.conftest import RUN_SECONDS, Night, Up, ask, write_day
from tests.realtime_service.conftest import eventually
from tests.realtime_service.rollout import tiny_releases

pytestmark = pytest.mark.proof

ROWS = 300


def write(running: Up, day: str) -> None:
    lines = (json.dumps({"id": f"m{number}", "text": f"my card {number} broke"}) for number in range(ROWS))
    write_day(running, day, "\n".join(lines))


def processes(running: Up, of: str) -> list[psutil.Process]:
    """Those that have this in their command line, and are not its shells."""
    found = list[psutil.Process]()
    for process in running.descendants():
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            found += [process] if of in " ".join(process.cmdline()) else []
    return found


@contextlib.contextmanager
def stopped(running: Up, of: str) -> Iterator[None]:
    eventually(lambda: processes(running, of), RUN_SECONDS, every=0.05)
    held = processes(running, of)
    for process in held:
        process.suspend()
    try:
        yield
    finally:
        for process in held:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def commits(running: Up, day: str) -> int:
    return sum(it.get("tandem.ds") == day for it in DeltaTable(running.plan.state.scores_table).history())


def record(running: Up, run: RunState) -> RunRecord:
    return run_record.read(running.plan.state.runs_dir / run.partition / f"{run.run_id}.json")


def test_one_day_that_is_triggered_twice_at_once_is_committed_once(running: Up, night: Night) -> None:
    day = "2026-02-01"
    write(running, day)
    triggered = [running.api.trigger(DAG, {}, day) for _ in range(2)]
    runs = [running.api.wait_run(DAG, it, RUN_SECONDS) for it in triggered]
    assert [it.state for it in runs] == ["success", "success"]
    assert commits(running, day) == 1
    # One waits for the device, and finds the day committed.
    assert sorted("an earlier run had committed the day" in it.note for it in runs) == [False, True]


@pytest.mark.parametrize(
    ("day", "killed"), [("2026-02-02", "/spark_application.py"), ("2026-02-03", "org.apache.spark")]
)
def test_a_night_whose_spark_is_killed_is_tried_again_and_commits_once(
    running: Up, night: Night, day: str, killed: str
) -> None:
    write(running, day)
    run_id = running.api.trigger(DAG, {"day": day})
    eventually(lambda: processes(running, killed), RUN_SECONDS, every=0.05)
    for process in processes(running, killed):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    run = running.api.wait_run(DAG, run_id, 2 * RUN_SECONDS)
    assert (run.state, run.tries["score"], commits(running, day)) == ("success", 2, 1)


def application(running: Up, day: str) -> list[psutil.Process]:
    """The JVM of spark-submit for a day, and what works for it, once its driver does."""

    def found() -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            for driver in processes(running, f"/spark_application.py --ds {day}"):
                jvm = driver.parent()
                if jvm and driver.name().startswith("python") and jvm.name() == "java":
                    return [jvm, driver, *driver.children(recursive=True)]
        return []

    eventually(found, RUN_SECONDS, every=0.05)
    return found()


def ends(started: list[psutil.Process], seconds: float = 15) -> bool:
    """Whether all of these end soon. Their parent may leave them as zombies."""

    def alive(process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return process.status() != psutil.STATUS_ZOMBIE
        return False

    eventually(lambda: not any(map(alive, started)), seconds)
    return True


@pytest.mark.parametrize(
    ("day", "path", "change"),
    [
        ("2026-02-09", "/taskInstances/score", {"new_state": "failed"}),
        ("2026-02-10", "", {"state": "failed"}),
    ],
    ids=["task", "run"],
)
def test_spark_ends_with_a_task_or_run_that_a_person_marks_as_failed(
    running: Up, night: Night, day: str, path: str, change: dict[str, str]
) -> None:
    write(running, day)
    run_id = running.api.trigger(DAG, {"day": day})
    started = application(running, day)
    marked = ask(running, f"/api/v2/dags/{DAG}/dagRuns/{run_id}{path}", running.api.token, change, "PATCH")
    assert marked.code == 200, marked.text
    assert ends(started, 60)
    run = running.api.wait_run(DAG, run_id, RUN_SECONDS)
    assert (run.state, run.tries["score"], commits(running, day)) == ("failed", 1, 0)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("day", "above"), [("2026-02-06", 1), ("2026-02-07", 2)], ids=["task", "supervisor"])
def test_a_night_whose_task_or_its_supervisor_is_killed_is_tried_again_and_commits_once(
    running: Up, night: Night, day: str, above: int
) -> None:
    """`above`: of the killed one, in the line of the JVM's ancestors."""
    write(running, day)
    run_id = running.api.trigger(DAG, {"day": day})
    started = application(running, day)
    started[0].parents()[above - 1].kill()
    # Long before the next try, which waits for half a minute at least.
    assert ends(started)
    run = running.api.wait_run(DAG, run_id, 3 * RUN_SECONDS)
    assert (run.state, run.tries["score"], commits(running, day)) == ("success", 2, 1)
    assert record(running, run).state is State.PUBLISHED


@pytest.mark.timeout(900)
def test_a_night_whose_api_server_is_killed_goes_on_with_another_and_commits_once(running: Up, night: Night) -> None:
    day = "2026-02-08"
    write(running, day)
    run_id = running.api.trigger(DAG, {"day": day})
    started = application(running, day)
    for server in processes(running, "airflow api_server"):
        with contextlib.suppress(psutil.NoSuchProcess):
            server.kill()
    run = running.api.wait_run(DAG, run_id, 3 * RUN_SECONDS)
    assert (run.state, commits(running, day)) == ("success", 1)
    assert record(running, run).state is State.PUBLISHED
    assert ends(started)
    assert "airflow-api ended: " in running.output.read_text()


def test_where_redis_does_not_answer_publishing_is_tried_again_and_done_once(running: Up, night: Night) -> None:
    # After the days of all other tests: an earlier one than the published one would not be made live.
    day = "2026-02-28"
    write(running, day)
    run_id = running.api.trigger(DAG, {"day": day})
    eventually(lambda: running.api.run_state(DAG, run_id).tasks.get("judge") == "success", RUN_SECONDS, every=0.05)
    with stopped(running, "redis-server"):
        running.api.wait_started(DAG, run_id, "publish", RUN_SECONDS)
        eventually(
            lambda: running.api.run_state(DAG, run_id).tasks["publish"] == "up_for_retry", RUN_SECONDS, every=0.2
        )
    run = running.api.wait_run(DAG, run_id, RUN_SECONDS)
    assert (run.state, run.tries["publish"], run.tries["score"], commits(running, day)) == ("success", 2, 1, 1)
    publication = record(running, run).publication
    assert publication is not None
    assert (publication.live, publication.moved) == (True, True)


def test_a_release_that_is_promoted_meanwhile_scores_the_next_night_and_not_this_one(
    running: Up, night: Night, release: Release
) -> None:
    day = "2026-02-05"
    write(running, day)
    store = Store.from_settings(running.plan.state)
    other = tiny_releases.seal(store, "tiny", favourite=3)
    run_id = running.api.trigger(DAG, {"day": day})
    with (
        RedisServer(running.plan.state) as server,
        redis.Redis.from_url(server.url) as client,
        stopped(running, "spark_application.py"),
    ):
        pointer.promote(store, client, other.id)
    run = running.api.wait_run(DAG, run_id, RUN_SECONDS)
    rows = DeltaTable(running.plan.state.scores_table).to_pyarrow_table(partitions=[("ds", "=", day)])
    assert run.state == "success"
    assert set(rows["release"].to_pylist()) == {record(running, run).release} == {release.id}
