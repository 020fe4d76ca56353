"""The driver is killed at a named moment: readers see the old day or the new one, and the next run does the rest."""

import signal

import pytest

from batch_job.run_record import State
from batch_job.steps import score
from tests.batch_job.conftest import DAY
from tests.integration.nightly.conftest import LINES, SHARDS, House, check_complete, old_rows

OLD_EPOCH = (f"{DAY}.1", 1)
proof = pytest.mark.proof


#: Moments of death, and the finished shards by then, at least and at most.
PHASES = [
    ("planned", 0, 0),
    ("judged", 0, 0),
    ("one shard", 1, SHARDS),
    ("half the shards", SHARDS // 2, SHARDS),
    ("all shards", SHARDS, SHARDS),
    ("quarantined", SHARDS, SHARDS),
    ("gated", SHARDS, SHARDS),
    ("checked", SHARDS, SHARDS),
]
SUITE = "half the shards"


@pytest.mark.parametrize("house", ["disk", pytest.param("s3", marks=proof)], indirect=True)
@pytest.mark.parametrize(
    ("phase", "least", "most"), [pytest.param(*each, marks=() if each[0] == SUITE else proof) for each in PHASES]
)
def test_a_driver_killed_before_its_commit_leaves_the_old_day_and_its_shards(
    house: House, in_this_spark: None, phase: str, least: int, most: int
) -> None:
    check_killed(house, phase, least, most)


@proof
@pytest.mark.parametrize(("phase", "least", "most"), PHASES)
def test_so_does_one_whose_executors_outlive_it(
    house: House, master: str, in_this_spark: None, phase: str, least: int, most: int
) -> None:
    """Those of a cluster go on until they notice; the next run finds what they had finished by then."""
    check_killed(house, phase, least, most, master)


def check_killed(house: House, phase: str, least: int, most: int, *master: str) -> None:
    version = house.version
    assert house.night(phase, *master).returncode == -signal.SIGKILL
    assert (house.rows(), house.version, house.answering()) == (old_rows(), version, OLD_EPOCH)
    finished = house.finished()
    assert least <= finished <= most

    run = score.score(DAY, house.path)
    check_complete(house, run)
    assert run.scoring is not None
    assert (run.scoring.units, run.scoring.units_resumed) == (SHARDS, finished)
    left = len(LINES) * (SHARDS - finished) / SHARDS
    assert sum(worker.rows for worker in run.scoring.workers) == pytest.approx(left, abs=25)
    house.publish()
    assert house.answering() == (f"{DAY}.{run.scoring.token}", len(LINES))
    if 0 < finished < SHARDS:
        # Adopted rows equal computed ones.
        again = score.score(DAY, house.path, force=True).scoring
        assert again is not None
        assert (again.content, again.units_resumed) == (run.scoring.content, 0)


@proof
def test_control_a_commit_in_two_steps_leaves_neither_day(house: House) -> None:
    assert house.night("old taken away").returncode == -signal.SIGKILL
    assert not house.rows()


@proof
def test_a_driver_killed_after_its_commit_leaves_the_new_day_to_be_published(house: House, in_this_spark: None) -> None:
    assert house.night("committed").returncode == -signal.SIGKILL
    assert house.answering() == OLD_EPOCH
    assert (house.record.state, house.record.scoring) == (State.PLANNED, None)
    seen, version = house.rows(), house.version
    run = score.score(DAY, house.path)
    assert (run.state, house.version, house.rows()) == (State.UNCHANGED, version, seen)
    check_complete(house, run)
    assert run.scoring is not None
    house.publish()
    assert house.answering() == (f"{DAY}.{run.scoring.token}", len(LINES))


def test_a_publisher_killed_before_it_says_so_has_published(house: House, in_this_spark: None) -> None:
    run = score.score(DAY, house.path)
    assert run.scoring is not None
    assert house.night_publishes("published").returncode == -signal.SIGKILL
    published = (f"{DAY}.{run.scoring.token}", len(LINES))
    assert (house.record.state, house.answering()) == (State.COMMITTED, published)
    again = house.publish()
    assert again.publication is not None
    assert (again.state, again.publication.moved, again.publication.live) == (State.PUBLISHED, False, True)
    assert house.answering() == published
