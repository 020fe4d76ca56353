"""Fair queueing by caller inside a lane: a flood neither delays nor displaces callers that are within their shares."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from realtime_service.errors import Overloaded
from realtime_service.scheduling.caller_shares import _REMEMBERED, CallerShares
from realtime_service.scheduling.queue import Task
from realtime_service.settings import Lane
from shared_model.types import ServingPath
from tests.realtime_service.scheduling.test_scheduler import LANES, PAIRS, Simulation

FLOOD = "flood"
LATENCY, DYNAMIC = ServingPath.LATENCY, ServingPath.DYNAMIC
#: Seconds after which a task without a deadline would be ordered, and many times more.
SOON, LATE = 0.01, 100.0

Kinds = Sequence[tuple[bool, float | None, int]]

paths = st.sampled_from([LATENCY, DYNAMIC])
#: Of a task: real-time, timeout, tokens.
kinds = st.tuples(st.booleans(), st.none() | st.sampled_from([LATE, 10 * LATE]), st.sampled_from([16, 40]))
floods = st.lists(kinds, min_size=2, max_size=60)


class OneLane(Simulation):
    """Of the lanes only this one, so that no other delays its tasks."""

    def __init__(self, path: ServingPath, lanes: Mapping[ServingPath, Lane] = LANES) -> None:
        super().__init__(lanes={path: lanes[path]})
        self.path = path

    def of(self, caller: str, real_time: bool = False, timeout: float | None = None, tokens: int = 16) -> Task:
        task = self.task(self.path, timeout, tokens, real_time=real_time)
        task.caller = caller
        return task

    def flood(self, kinds: Kinds) -> None:
        for kind in kinds:
            self.scheduler.admit([self.of(FLOOD, *kind)], self.now)


@given(paths, floods, st.integers(1, 20), st.integers(1, 3))
@example(LATENCY, [(True, LATE, 16)] * 60, 1, 1)
def test_a_flood_delays_callers_within_their_shares_by_one_batch_at_most(
    path: ServingPath, flood: Kinds, rounds: int, callers: int
) -> None:
    """However urgent the flood, and however long it has been served alone."""
    simulation = OneLane(path)
    simulation.flood(flood)
    for _ in range(rounds):
        simulation.step()
        light = [simulation.of(f"light {number}") for number in range(callers)]
        for task in light:
            simulation.scheduler.admit([task], simulation.now)
        simulation.flood(flood[:1])
        led_by_the_flood = 0
        while any(task.queued for task in light):
            batch = simulation.step()
            assert batch
            led_by_the_flood += batch.tasks[0].caller == FLOOD
        assert led_by_the_flood <= 1
        # Long enough that these callers stay within their shares.
        for _ in range(4 * callers):
            simulation.flood(flood[:1])
            simulation.step()


@given(paths, floods, st.lists(kinds, max_size=20))
def test_the_device_never_idles_and_each_task_is_served_once(path: ServingPath, flood: Kinds, light: Kinds) -> None:
    simulation = OneLane(path)
    simulation.flood(flood)
    for number, kind in enumerate(light):
        simulation.scheduler.admit([simulation.of(f"light {number % 3}", *kind)], simulation.now)
        simulation.step()
    while simulation.scheduler.busy:
        assert simulation.step()
    served = [task for _, batch in simulation.started for task in batch.tasks]
    assert len(served) == len(set(map(id, served))) == len(flood) + len(light)
    assert simulation.scheduler.predicted_finish(path, 0.0, simulation.now) >= simulation.now


@given(paths, floods)
def test_a_lone_caller_is_served_real_time_first_then_by_deadline(path: ServingPath, kinds: Kinds) -> None:
    alone = OneLane(path)
    tasks = [alone.of("alone", *kind) for kind in kinds]
    for task in tasks:
        alone.scheduler.admit([task], alone.now)
    expected = sorted(tasks, key=lambda it: (not it.real_time, it.deadline or it.arrived + LANES[path].assumed_timeout))
    alone.drain()
    leaders = [batch.tasks[0] for _, batch in alone.started]
    # Batch mates of another kind come later, each in the order of its own kind.
    assert leaders == [task for task in expected if any(task is leader for leader in leaders)]
    for tokens in (16, 40):
        same = [task for _, batch in alone.started for task in batch.tasks if task.tokens == tokens]
        assert same == [task for task in expected if task.tokens == tokens]


@given(st.integers(10, 30), st.booleans(), st.booleans())
def test_two_floods_get_equal_parts_of_the_device(count: int, real_time: bool, longer: bool) -> None:
    simulation = OneLane(LATENCY)
    for _ in range(count):
        simulation.scheduler.admit([simulation.of("a", real_time, SOON * 10_000)], simulation.now)
        simulation.scheduler.admit([simulation.of("b", tokens=40 if longer else 16)], simulation.now)
    used, most = {"a": 0.0, "b": 0.0}, max(simulation.of("x", tokens=n).seconds for n in (16, 40))
    while simulation.scheduler.queue_depth(LATENCY) > count:
        batch = simulation.step()
        assert batch
        used[batch.tasks[0].caller] += batch.tasks[0].cost
        assert abs(used["a"] - used["b"]) <= most + 1e-9


@pytest.mark.parametrize("rows", [1, 2])
@given(st.lists(kinds, min_size=30, max_size=40), st.booleans(), st.integers(1, 8))
def test_admission_predicts_what_the_order_does(rows: int, flood: Kinds, real_time: bool, count: int) -> None:
    simulation = OneLane(LATENCY, LANES if rows == 1 else PAIRS)
    simulation.flood(flood)
    simulation.step()
    for _ in range(count):
        light = simulation.of("light", real_time)
        predicted = simulation.scheduler.predicted_finish(LATENCY, light.seconds, simulation.now, real_time, "light")
        simulation.scheduler.admit([light], simulation.now)
    simulation.flood(flood[:4])
    while light.queued:
        simulation.step()
    [(started, batch)] = [(at, batch) for at, batch in simulation.started if light in batch.tasks]
    # The flood may have been one batch ahead.
    assert started + batch.predicted <= predicted + simulation.of(FLOOD, tokens=40).seconds
    # A flood waits for itself, in such batches.
    its_own = simulation.scheduler.predicted_finish(LATENCY, light.seconds, simulation.now, False, FLOOD)
    assert its_own >= simulation.now + simulation.scheduler.queue_depth(LATENCY) * light.latency.share(
        rows, light.tokens
    )


def test_a_flood_makes_no_other_caller_late_or_refused() -> None:
    simulation, timeout = OneLane(LATENCY), 0.030
    lane_holds = LANES[LATENCY].max_concurrent
    simulation.flood([(True, None, 16)] * lane_holds)
    with pytest.raises(Overloaded, match="the latency lane is full"):
        simulation.flood([(True, None, 16)])
    simulation.step()
    # Alone, this backlog would be 128 ms.
    assert simulation.scheduler.predicted_finish(LATENCY, 0.002, simulation.now) > simulation.now + 0.1
    light = simulation.of("light", timeout=timeout)
    simulation.scheduler.admit([light], simulation.now)
    # The lane is full again, but not of this caller's tasks.
    simulation.scheduler.admit([simulation.of("another", timeout=timeout)], simulation.now)
    with pytest.raises(Overloaded, match="the latency lane is full"):
        simulation.scheduler.admit([simulation.of(FLOOD, timeout=timeout)], simulation.now)
    for _ in range(4):
        simulation.step()
    assert not light.queued
    with pytest.raises(Overloaded, match="the answer would come too late"):
        simulation.scheduler.admit([simulation.of(FLOOD, timeout=timeout)], simulation.now)


def test_what_a_lane_holds_grows_slowly_with_its_callers() -> None:
    simulation, holds = OneLane(LATENCY), LANES[LATENCY].max_concurrent
    queued = 0
    for caller in range(3 * holds):
        for _ in range(holds):
            try:
                simulation.scheduler.admit([simulation.of(str(caller))], simulation.now)
            except Overloaded:
                break
            queued += 1
    assert simulation.scheduler.queue_depth(LATENCY) == queued
    assert queued <= holds * sum(1 / number for number in range(1, holds + 1))


def test_to_pause_earns_nothing_and_strangers_do_not_fill_the_memory() -> None:
    shares = CallerShares()
    shares.entered("steady", 1.0, False)
    shares.entered("pauses", 1.0, False)
    for _ in range(3):
        shares.charge("pauses", 0.5)
    shares.left("pauses", 1.0, False)
    shares.entered("pauses", 1.0, False)
    assert shares.beyond() == {"pauses"}
    shares.charge("steady", 2.0)
    assert shares.beyond() == {"steady"}
    for number in range(10_000):
        shares.entered(f"stranger {number}", 0.001, False)
        shares.charge(f"stranger {number}", 0.02)
        shares.charge("steady", 0.02)
        shares.left(f"stranger {number}", 0.001, False)
    assert len(shares._callers) <= 2 * _REMEMBERED


def test_tasks_of_two_callers_share_a_batch() -> None:
    simulation = OneLane(DYNAMIC)
    for number in range(8):
        simulation.scheduler.admit([simulation.of(f"caller {number % 2}")], simulation.now)
    batch = simulation.step()
    assert batch
    assert len(batch.tasks) == 8
