"""The DAGs beside the nightly one, on the stack that its tests share."""

import contextlib
from collections.abc import Iterator

import psutil
from deltalake import DeltaTable
from tandem_stack.stack import DRAIN, DRIFT, HOUSEKEEPING

from shared_model.demo_messages import FIRST_DAY
from shared_model.redis_store.server import RedisServer
from shared_model.releases.store import Release
from shared_model.types import DeferredState
from tests.batch_job.deferred.deferring import result, submit_to
from tests.integration.stack.conftest import (
    ACCEPTED,
    REFUSED,
    ROWS,
    RUN_SECONDS,
    Accepted,
    Night,
    Unanswered,
    Up,
    task_log,
)


@contextlib.contextmanager
def service_stopped(running: Up) -> Iterator[None]:
    """No lane takes deferred requests meanwhile."""
    stopped = list[psutil.Process]()
    for process in running.descendants():
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            stopped += [process] if "realtime_service" in process.cmdline() else []
    assert stopped
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in stopped:
            process.resume()


def test_a_drain_finds_nothing_and_starts_no_spark(running: Up, night: Night) -> None:
    run = running.api.wait_run(DRAIN, running.api.trigger(DRAIN, {}), RUN_SECONDS)

    assert (run.state, run.tasks) == ("success", {"check": "skipped", "drain": "skipped"})
    assert "0 deferred requests wait" in task_log(running, run.run_id, "check", DRAIN)


def test_what_lanes_left_is_drained_in_spark_beside_the_latest_planned_day(running: Up, unanswered: Unanswered) -> None:
    with RedisServer(running.plan.state) as server, service_stopped(running):
        request_id = submit_to(server.url, "a text of no message")
        run = running.api.wait_run(DRAIN, running.api.trigger(DRAIN, {"limit": 1}), RUN_SECONDS)
        item = result(server.url, request_id)

    assert (run.state, run.tasks) == ("success", {"check": "success", "drain": "success"})
    assert "1 deferred requests wait, none with a deadline" in task_log(running, run.run_id, "check", DRAIN)
    assert item is not None
    assert (item.state, item.computed_by) == (DeferredState.PUBLISHED, "nightly")
    table = DeltaTable(running.plan.state.scores_table).to_pyarrow_table(partitions=[("source", "=", "deferred")])
    assert table["ds"].to_pylist() == [REFUSED]


def test_drift_is_measured_and_its_page_is_beside_the_scores(running: Up, accepted: Accepted) -> None:
    """The accepted day against the one before it. `make up` leaves this DAG to operators."""
    running.api.pause(DRIFT, False)
    run = running.api.wait_run(DRIFT, running.api.trigger(DRIFT, {"to": ACCEPTED, "days": [1, 30]}), RUN_SECONDS)

    assert (run.state, run.tasks) == ("success", {"measure": "success"})
    said = task_log(running, run.run_id, "measure", DRIFT)
    assert f"{ACCEPTED}..{ACCEPTED} (1 day), release " in said
    assert f": {ROWS:,} rows against {ROWS:,} of {FIRST_DAY}..{FIRST_DAY}" in said
    assert f"2025-12-17..{ACCEPTED}: not compared" in said
    page = running.plan.state.state / "drift" / ACCEPTED / "drift.html"
    assert f"page {page}" in said
    assert "<svg" in page.read_text()


def test_housekeeping_keeps_what_is_young_and_finds_the_replica_with_the_active_release(
    running: Up, accepted: Accepted, release: Release
) -> None:
    """`make up` leaves this DAG to operators, too."""
    running.api.pause(HOUSEKEEPING, False)
    records = set(running.plan.state.runs_dir.glob("*/*.json"))
    run = running.api.wait_run(HOUSEKEEPING, running.api.trigger(HOUSEKEEPING, {}), RUN_SECONDS)

    assert (run.state, run.tasks) == ("success", {"expire": "success"})
    assert records
    assert set(running.plan.state.runs_dir.glob("*/*.json")) == records
    said = task_log(running, run.run_id, "expire", HOUSEKEEPING)
    assert "0 runs older than 90 days deleted" in said
    assert f"release {release.id}: 1 of 1 replicas" in said
