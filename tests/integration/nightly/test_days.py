"""Many days in one Spark application whose driver is killed, or that meets a nightly run of one of its days.

In every run of the suite `test_driver_killed.py` kills the driver of one day, and `batch_job/steps/test_score_days.py`
calls many days again.
"""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from batch_job import lookup, run_record
from batch_job.run_record import RunRecord, State
from batch_job.steps import score_days
from shared_model.objects import open_objects
from tests.batch_job.conftest import DAY, NEXT_DAY, planned
from tests.integration.nightly.conftest import BAD, LINES, SHARDS, House, check_complete, old_rows

pytestmark = pytest.mark.proof

_SECONDS = 120.0


@pytest.fixture(autouse=True)
def two_days(house: House) -> None:
    """No run is planned."""
    open_objects(house.state.messages_dir).put(f"ds={NEXT_DAY}/messages.jsonl", b"\n".join([*LINES, *BAD]) + b"\n")
    open_objects(house.state.runs_dir).delete(f"{DAY}/{house.run}.json")


def newest(house: House, ds: str) -> RunRecord:
    return run_record.read(lookup.record_files(house.state.runs_dir, ds)[0].path)


@pytest.mark.parametrize("house", ["disk", "s3"], indirect=True)
@pytest.mark.parametrize(("phase", "commits"), [("half the shards", 0), ("committed", 1)])
def test_after_a_killed_driver_the_same_call_loses_nothing_and_scores_nothing_again(
    house: House, in_this_spark: None, phase: str, commits: int
) -> None:
    version = house.version
    assert house.night_of_days(phase, DAY, NEXT_DAY).returncode == -signal.SIGKILL
    assert (house.version, house.rows(NEXT_DAY)) == (version + commits, {})
    seen, finished = house.rows(), {ds: house.finished(ds) for ds in (DAY, NEXT_DAY)}
    assert (seen == old_rows()) == (not commits)

    assert score_days.score_days(DAY, NEXT_DAY) == 0
    assert house.version == version + 2
    for ds in (DAY, NEXT_DAY):
        run = newest(house, ds)
        check_complete(house, run)
        assert run.scoring is not None
        if ds == DAY and commits:
            assert (run.state, house.rows()) == (State.UNCHANGED, seen)
            continue
        assert (run.scoring.units, run.scoring.units_resumed) == (SHARDS, finished[ds])
        left = len(LINES) * (SHARDS - finished[ds]) / SHARDS
        assert sum(worker.rows for worker in run.scoring.workers) == pytest.approx(left, abs=25)


def test_of_a_nightly_run_of_one_of_the_days_and_that_day_one_commits(house: House) -> None:
    version = house.version
    with ThreadPoolExecutor() as pool:
        days = pool.submit(replace(house, run="days").night_of_days, "held before its commit", DAY, NEXT_DAY)
        until = time.monotonic() + _SECONDS
        while not any(it.token for it in begun(house)):
            assert time.monotonic() < until
            time.sleep(0.1)
        run_record.write(house.path, planned(house.state, house.client))
        night = pool.submit(house.night, "held before its commit")
        assert (days.result().returncode, night.result().returncode) == (3, 0)
    # That of the nightly run, and that of the other day.
    assert house.version == version + 2
    assert house.record.state is State.COMMITTED
    check_complete(house, house.record)
    [stale] = begun(house)
    assert (stale.state, newest(house, NEXT_DAY).state) == (State.STALE, State.COMMITTED)
    check_complete(house, newest(house, NEXT_DAY))


def begun(house: House) -> list[RunRecord]:
    """Runs of the first of many days."""
    files = lookup.record_files(house.state.runs_dir, DAY)
    return [run_record.read(file.path) for file in files if file.run_id.startswith(lookup.MANY_DAYS)]
