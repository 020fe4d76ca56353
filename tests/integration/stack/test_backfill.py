"""Seven days in one Spark application, beside a nightly run that becomes due while they are scored."""

import contextlib
import json
from collections.abc import Iterator
from datetime import date, timedelta

import psutil
import pytest
from deltalake import DeltaTable
from tandem_stack.stack import BACKFILL, DAG

from batch_job import lookup
from tests.integration.stack.conftest import RUN_SECONDS, Night, Up, task_log, write_day
from tests.realtime_service.conftest import eventually

pytestmark = pytest.mark.proof

DAYS = [str(date(2026, 3, 1) + timedelta(days=number)) for number in range(7)]
NIGHT = "2026-03-20"
ROWS = 300


def committed(running: Up) -> list[str]:
    """The days, in the order of their commits."""
    history = reversed(DeltaTable(running.plan.state.scores_table).history())
    return [it["tandem.ds"] for it in history if it.get("tandem.ds") in (*DAYS, NIGHT)]


def begun(running: Up) -> bool:
    found = lookup.record_files(running.plan.state.runs_dir, DAYS[0])
    return any(it.run_id.startswith(lookup.MANY_DAYS) for it in found)


@contextlib.contextmanager
def driver_stopped(running: Up) -> Iterator[None]:
    """No day is begun meanwhile."""
    stopped = list[psutil.Process]()
    for process in running.descendants():
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            stopped += [process] if "spark_application.py" in " ".join(process.cmdline()) else []
    assert stopped
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in stopped:
            process.resume()


def test_a_backfill_of_a_week_lets_a_nightly_run_go_first_and_then_does_the_rest(running: Up, night: Night) -> None:
    for day in (*DAYS, NIGHT):
        lines = (json.dumps({"id": f"m{number}", "text": f"my card {number} broke"}) for number in range(ROWS))
        write_day(running, day, "\n".join(lines))
    running.api.pause(BACKFILL, False)
    run_id = running.api.trigger(BACKFILL, {"from": DAYS[0], "to": DAYS[-1]})
    eventually(lambda: begun(running), RUN_SECONDS, every=0.05)
    with driver_stopped(running):
        nightly = running.api.trigger(DAG, {"day": NIGHT})
        eventually(lambda: running.api.run_state(DAG, nightly).tasks.get("plan") == "success", RUN_SECONDS, every=0.2)
    first = running.api.wait_run(DAG, nightly, RUN_SECONDS)
    run = running.api.wait_run(BACKFILL, run_id, RUN_SECONDS)

    assert (first.state, run.state, run.tries["score"]) == ("success", "success", 1)
    order = committed(running)
    assert [it for it in order if it != NIGHT] == DAYS
    # Those that it had begun are finished; the others come after the night.
    assert order.index(NIGHT) in (1, 2, 3, 4)
    left = len(DAYS) - order.index(NIGHT)
    said = task_log(running, run_id, "score", BACKFILL)
    assert f"{left} days are left: run {nightly} of ds={NIGHT}" in said
    # The night's epoch is newer, and nobody asked to publish the others.
    assert first.note.startswith(f"{NIGHT}: published")
