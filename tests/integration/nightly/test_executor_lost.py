"""Executors that are killed, and tasks that Spark runs twice, on a cluster of two hosts: each row is committed once."""

import pytest

from batch_job.run_record import State
from batch_job.spark import failures
from batch_job.steps import score
from tests.batch_job.conftest import DAY
from tests.integration.nightly.conftest import LINES, OLD, SHARDS, House, check_complete, old_rows

pytestmark = pytest.mark.proof

COPIED = "a task is copied"
SPECULATION = [
    "spark.speculation=true",
    "spark.speculation.interval=100ms",
    "spark.speculation.quantile=0.5",
    "spark.speculation.multiplier=1.1",
]


@pytest.mark.parametrize("mishap", ["an executor is killed", "a worker is killed"])
def test_what_is_killed_while_it_scores_loses_the_shard_at_hand(house: House, master: str, mishap: str) -> None:
    done = house.night(mishap, master)
    assert done.returncode == 0, done.stdout[-3000:]
    assert (house.notes / "killed").exists()
    assert house.record.state is State.COMMITTED
    check_complete(house, house.record)
    # None was computed twice, those of the killed task included.
    assert len(house.rows_of_files()) == 1 + SHARDS


def test_control_without_reports_of_finished_shards_some_are_computed_twice(house: House, master: str) -> None:
    done = house.night("an executor is killed, and what it finished is forgotten", master)
    assert done.returncode == 0, done.stdout[-3000:]
    assert (house.notes / "killed").exists()
    # Only files that a task reported are committed: readers see each row once all the same.
    check_complete(house, house.record)
    assert len(house.rows_of_files()) > 1 + SHARDS


def test_without_a_cluster_a_killed_worker_ends_the_run_in_one_line_and_the_next_goes_on(
    house: House, in_this_spark: None
) -> None:
    """A Spark in one process tries a task once."""
    done = house.night("a worker is killed")
    said = [line for line in done.stdout.splitlines() if line.startswith("batch_job")]
    assert (done.returncode, said) == (75, [f"batch_job score: {failures._LOST}"])
    assert (house.rows(), house.record.state) == (old_rows(), State.FAILED)
    finished = house.finished()
    run = score.score(DAY, house.path)
    check_complete(house, run)
    assert run.scoring is not None
    assert run.scoring.units_resumed == finished >= 1


@pytest.mark.parametrize("mishap", [COPIED, f"{COPIED}, and an executor is killed"])
def test_of_a_task_that_spark_runs_twice_one_copy_counts(house: House, master: str, mishap: str) -> None:
    done = house.night(mishap, master, *SPECULATION)
    assert done.returncode == 0, done.stdout[-3000:]
    assert (house.notes / "copy wrote").exists()
    assert (house.notes / "killed").exists() is (mishap != COPIED)
    check_complete(house, house.record)
    # Control: both copies have written their first shard; all files together would hold its rows twice.
    # The finished shards of the lost executor are there once.
    assert len(house.rows_of_files()) == 1 + SHARDS + 1
    assert sum(house.rows_of_files()) > len(OLD) + len(LINES)
