"""Batches that are taken while all streams are busy: few, short, in their turn, and about to begin."""

import pytest

from realtime_service.scheduling.batch import Batch
from realtime_service.scheduling.queue import Task
from realtime_service.scheduling.scheduler import DELIVERY_SHARE
from shared_model.types import ServingPath
from tests.realtime_service.scheduling.test_scheduler import BULK_BATCH_SECONDS, Simulation

LATENCY, DYNAMIC, DEFERRED = ServingPath.LATENCY, ServingPath.DYNAMIC, ServingPath.DEFERRED
STREAMS, AHEAD = 2, 1


def busy(lane: ServingPath = LATENCY, tokens: int = 16) -> Simulation:
    """Both streams have just begun a batch."""
    simulation = Simulation(STREAMS, ahead=AHEAD)
    for width in (tokens, 2 * tokens):
        simulation.admit(simulation.task(lane, 10.0, width))
    for _ in range(STREAMS):
        batch = simulation.start()
        assert batch
        assert not batch.ahead
    return simulation


def admitted(simulation: Simulation, *tasks: Task) -> Batch | None:
    for task in tasks:
        assert simulation.admit(task)
    return simulation.start()


def test_one_batch_is_taken_ahead_and_the_next_when_a_stream_has_ended_its_own() -> None:
    simulation = busy()
    waiting = [simulation.task(LATENCY, 10.0) for _ in range(3)]
    batch = admitted(simulation, *waiting)
    assert batch
    assert batch.ahead
    assert batch.tasks == (waiting[0],)
    assert simulation.start() is None
    simulation.finish()
    batch = simulation.start()
    assert batch
    assert batch.ahead
    assert batch.tasks == (waiting[1],)


def test_the_predicted_finish_counts_what_was_taken_ahead() -> None:
    simulation = busy()
    batch = admitted(simulation, simulation.task(LATENCY, 10.0))
    assert batch
    one = batch.predicted
    # The first stream runs it next, and the second is free before that.
    free = sorted(simulation.running.values())[1]
    assert simulation.scheduler.predicted_finish(LATENCY, one, simulation.now) == pytest.approx(free + one)


@pytest.mark.parametrize(("lane", "tokens"), [(DYNAMIC, 16), (LATENCY, 512)])
def test_a_batch_that_would_gain_mates_or_take_long_is_not_taken_ahead(lane: ServingPath, tokens: int) -> None:
    simulation = busy()
    assert admitted(simulation, simulation.task(lane, 10.0, tokens)) is None


def test_nothing_is_taken_ahead_of_a_stream_that_is_busy_for_long() -> None:
    simulation = busy(DYNAMIC, 512)
    assert min(simulation.running.values()) - simulation.now > BULK_BATCH_SECONDS
    assert admitted(simulation, simulation.task(LATENCY, 10.0)) is None
    # Nor while a device hangs.
    simulation.now += 1.0
    assert simulation.start() is None


def test_a_text_that_would_be_late_is_not_taken_ahead() -> None:
    simulation = busy()
    late = simulation.task(LATENCY, 10.0)
    assert simulation.admit(late)
    end = min(simulation.running.values()) + late.seconds
    late.deadline = late.arrived + (end - late.arrived) / (1 - DELIVERY_SHARE) - 1e-6
    assert simulation.start() is None
    late.deadline += 2e-6
    assert simulation.start()


def test_a_wide_batch_has_nothing_behind_it() -> None:
    simulation = Simulation(STREAMS, ahead=AHEAD)
    batch = admitted(simulation, simulation.task(LATENCY, 10.0))
    assert batch
    assert batch.wide
    assert admitted(simulation, simulation.task(LATENCY, 10.0)) is None
