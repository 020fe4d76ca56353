"""Two runs of one day on a cluster, each with a driver of its own, held until both have computed it: one commits."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from batch_job import run_record
from batch_job.run_record import State
from tests.batch_job.conftest import planned
from tests.integration.nightly.conftest import House, check_complete

pytestmark = pytest.mark.proof


def exit_codes(house: House, second: House, master: str, mishap: str) -> list[int]:
    """Of both, each on one host."""
    run_record.write(second.path, planned(house.state, house.client, run_id=second.run))
    with ThreadPoolExecutor(2) as pool:
        nights = [pool.submit(each.night, mishap, master, "spark.cores.max=1") for each in (house, second)]
        return sorted(night.result().returncode for night in nights)


@pytest.mark.parametrize("house", ["disk", "s3"], indirect=True)
def test_of_two_runs_held_before_commit_one_commits_and_the_other_is_stale(house: House, master: str) -> None:
    version, second = house.version, replace(house, run="second")
    assert exit_codes(house, second, master, "held before its commit") == [0, 3]
    stale, done = sorted((house.record, second.record), key=lambda run: run.token)
    assert (stale.state, stale.token, done.state, done.token) == (State.STALE, 2, State.COMMITTED, 3)
    check_complete(house, done)
    assert house.version == version + 1


def test_control_without_the_checks_both_commit(house: House, master: str) -> None:
    version, second = house.version, replace(house, run="second")
    assert exit_codes(house, second, master, "held before its commit, which anyone may") == [0, 0]
    assert house.version == version + 2
