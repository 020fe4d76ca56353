"""The scheduler under a simulated clock: every promise of its docstring, for any traffic hypothesis can think of."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime_service.errors import Overloaded
from realtime_service.scheduling.latency_model import LatencyModel, Measurement, Speeds
from realtime_service.scheduling.queue import Task
from realtime_service.scheduling.scheduler import BULK, EARNED_SHARE, Batch, Scheduler
from realtime_service.settings import Lane, ServiceSettings, lanes
from shared_model import settings as environment
from shared_model.encoding import Encoding
from shared_model.types import Device, Precision, ServingPath

LANES = lanes(ServiceSettings(), Device.CPU)
UNIT_SECONDS = 0.010

#: Round numbers near the measured ones: INT8 2 ms for 1×16, BF16 64×32 in about 100 ms. Wide is 1.5 times as fast.
NUMBERS = {Precision.INT8: (0.0015, 0.0001, 0.00002), Precision.BF16: (0.0015, 0.0002, 0.00004)}
RELEASES = 2


def speeds() -> list[dict[Precision, Speeds]]:
    """The variants of two releases."""

    def one(precision: Precision) -> Speeds:
        numbers = NUMBERS[precision]
        wide = LatencyModel(*(number / 1.5 for number in numbers)) if precision is Precision.INT8 else None
        return Speeds(LatencyModel(*numbers), wide)

    return [{precision: one(precision) for precision in NUMBERS} for _ in range(RELEASES)]


@dataclass
class Simulation:
    """A device whose units take `slowness` times what was predicted, and a record of all that happened."""

    streams: int = 1
    slowness: float = 1.0
    lanes: Mapping[ServingPath, Lane] = field(default_factory=lambda: LANES)
    speeds: list[dict[Precision, Speeds]] = field(default_factory=speeds)
    now: float = 100.0
    admitted: list[Task] = field(default_factory=list)
    started: list[tuple[float, Batch]] = field(default_factory=list)
    running: dict[Batch, float] = field(default_factory=dict)
    dead: list[Task] = field(default_factory=list)
    most_at_once: int = 0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.lanes, self.streams, UNIT_SECONDS)

    def task(
        self,
        lane: ServingPath,
        timeout: float | None = None,
        tokens: int = 16,
        release: int = 0,
        real_time: bool = False,
    ) -> Task:
        """A text that arrives now."""
        encoding = Encoding(np.ones(tokens, np.int32), truncated=False)
        deadline = None if timeout is None else self.now + timeout
        return Task(lane, encoding, self.speeds[release][LANES[lane].precision], self.now, deadline, real_time)

    def admit(self, *tasks: Task) -> bool:
        try:
            self.scheduler.admit(tasks, self.now)
        except Overloaded:
            return False
        self.admitted += tasks
        return True

    def start(self) -> Batch | None:
        """Start one unit; None when none can start now."""
        while True:
            unit, dead = self.scheduler.next_unit(self.now)
            self.dead += dead
            if unit:
                self.started.append((self.now, unit))
                self.scheduler.started(unit, self.now)
                self.running[unit] = self.now + unit.predicted * self.slowness
                self.most_at_once = max(self.most_at_once, len(self.running))
            if unit or not dead:
                return unit

    def finish(self) -> None:
        """Go on to when the next unit ends."""
        unit, self.now = min(self.running.items(), key=lambda item: item[1])
        del self.running[unit]
        self.scheduler.finished(unit, unit.predicted * self.slowness)

    def step(self) -> Batch | None:
        """Start one unit, after the end of others if need be; None when nothing waits."""
        while not (unit := self.start()) and self.running:
            self.finish()
        return unit

    def run_until(self, at: float) -> None:
        while True:
            while self.start():
                pass
            if not self.running or min(self.running.values()) > at:
                self.now = at
                return
            self.finish()

    def drain(self) -> None:
        while self.step() or self.running:
            pass


Traffic = list[tuple[float, ServingPath, float | None, int, int, bool, bool]]

arrivals = st.lists(
    st.tuples(
        st.just(0.0) | st.floats(0, 0.05),  # seconds since the one before
        st.sampled_from(list(LANES)),
        st.none() | st.floats(0.005, 2.0),
        st.sampled_from([5, 16, 40]) | st.integers(3, 256),
        st.integers(0, RELEASES - 1),
        st.booleans(),  # withdrawn at once
        st.booleans(),  # real-time
    ),
    max_size=60,
)
streams = st.integers(1, 4)


def play(traffic: Traffic, slowness: float = 1.0, streams: int = 1) -> Simulation:
    simulation = Simulation(streams, slowness)
    for gap, lane, timeout, tokens, release, leaves, real_time in traffic:
        simulation.run_until(simulation.now + gap)
        one = simulation.task(lane, timeout, tokens, release, real_time)
        if simulation.admit(one) and leaves:
            simulation.scheduler.withdraw(one)
    simulation.drain()
    return simulation


@given(arrivals, streams)
@settings(deadline=None)
def test_every_admitted_task_ends_exactly_once(traffic: Traffic, streams: int) -> None:
    simulation = play(traffic, streams=streams)
    ended = [one for _, unit in simulation.started for one in unit.tasks] + simulation.dead
    ended += [one for one in simulation.admitted if one.withdrawn]
    assert sorted(map(id, ended)) == sorted(map(id, simulation.admitted))


@given(arrivals, st.floats(1, 8), streams)
@settings(deadline=None)
def test_nothing_starts_that_is_predicted_to_finish_late(traffic: Traffic, slowness: float, streams: int) -> None:
    for started, unit in play(traffic, slowness, streams).started:
        for one in unit.tasks:
            assert one.deadline is None or started + unit.predicted <= one.deadline + 1e-9


@given(arrivals)
@settings(deadline=None)
def test_batches_stay_inside_rows_and_tokens(traffic: Traffic) -> None:
    for _, unit in play(traffic).started:
        lane = LANES[unit.lane]
        assert len(unit.tasks) <= lane.max_rows
        assert len(unit.tasks) == 1 or len(unit.tasks) * unit.tokens <= lane.token_budget
        assert unit.tokens >= max(one.encoding.tokens for one in unit.tasks)


@given(arrivals)
@settings(deadline=None)
def test_a_unit_is_of_one_engine_and_one_padded_width(traffic: Traffic) -> None:
    for _, unit in play(traffic).started:
        assert {(one.speeds, one.tokens) for one in unit.tasks} == {(unit.tasks[0].speeds, unit.tokens)}


@given(arrivals)
@settings(deadline=None)
def test_a_unit_is_led_by_its_lanes_most_urgent_task_and_filled_by_deadline(traffic: Traffic) -> None:
    simulation = Simulation()
    for _, lane, timeout, tokens, release, _, real_time in traffic:
        simulation.admit(simulation.task(lane, timeout, tokens, release, real_time))
    waiting = list(simulation.admitted)
    while any(simulation.scheduler.waiting(path) for path in LANES):
        unit = simulation.step()
        if unit is None:
            continue  # all it met was dead
        left = [one for one in waiting if one.lane is unit.lane and one not in simulation.dead]
        assert unit.tasks[0] is min(left, key=due)
        alike = [one for one in left if (one.speeds, one.tokens) == (unit.tasks[0].speeds, unit.tokens)]
        assert list(unit.tasks) == sorted(alike, key=due)[: len(unit.tasks)]
        waiting = [one for one in waiting if one not in unit.tasks]


def due(one: Task) -> tuple[bool, float]:
    """The order of a lane; sorting is stable, so what came first goes first."""
    wanted = one.arrived + LANES[one.lane].assumed_timeout if one.deadline is None else one.deadline
    return not one.real_time, wanted


@pytest.mark.parametrize("times", [2, 5, 10])
def test_real_time_texts_are_answered_whatever_else_is_asked_of_their_lane(times: int) -> None:
    """Seven tenths of the device for them, and so many times all of it for others with deadlines of their own."""
    simulation, draw = Simulation(), random.Random(times)
    seconds = simulation.task(ServingPath.LATENCY).seconds
    asked = 0
    for _ in range(4_000):
        real_time = draw.random() < 0.7 / (0.7 + times)
        simulation.run_until(simulation.now + draw.expovariate((0.7 + times) / seconds))
        asked += real_time
        simulation.admit(simulation.task(ServingPath.LATENCY, 0.050, real_time=real_time))
    simulation.drain()
    answered = {id(one) for _, unit in simulation.started for one in unit.tasks}
    real_time_answered = sum(one.real_time and id(one) in answered for one in simulation.admitted)
    assert real_time_answered >= 0.99 * asked
    # The others have what is left.
    assert len(answered) * seconds >= 0.95 * (simulation.now - 100.0)


def test_a_unit_makes_nobody_of_another_width_late_who_can_still_be_in_time() -> None:
    simulation = Simulation()
    leader = simulation.task(ServingPath.DYNAMIC, 0.020)
    other = simulation.task(ServingPath.DYNAMIC, 0.022, tokens=128)
    assert simulation.admit(leader)
    assert simulation.admit(other)
    for _ in range(60):
        assert simulation.admit(simulation.task(ServingPath.DYNAMIC, 5.0))
    simulation.drain()
    assert not simulation.dead
    assert len(simulation.started[0][1].tasks) > 1


@given(arrivals, streams)
@settings(deadline=None)
def test_bulk_units_are_short_while_interactive_work_is_about(traffic: Traffic, streams: int) -> None:
    simulation = play(traffic, streams=streams)
    interactive = [one.arrived for one in simulation.admitted if one.lane not in BULK]
    for started, unit in simulation.started:
        about = any(started - 1.0 < arrived <= started for arrived in interactive)
        if unit.lane in BULK and about and len(unit.tasks) > 1:
            assert unit.predicted <= UNIT_SECONDS


def test_what_a_slow_device_left_too_late_is_dropped_and_not_run() -> None:
    simulation = Simulation(slowness=6)
    waiting = [simulation.task(ServingPath.LATENCY, 0.05) for _ in range(12)]
    assert all(simulation.admit(one) for one in waiting)
    simulation.drain()
    assert simulation.dead
    assert len(simulation.started) + len(simulation.dead) == len(waiting)
    assert all(at + unit.predicted <= waiting[0].deadline for at, unit in simulation.started)


def test_a_batch_does_not_grow_past_its_tightest_deadline() -> None:
    simulation = Simulation()
    tight = simulation.task(ServingPath.DYNAMIC, 0.020)
    assert simulation.admit(tight)
    for _ in range(63):
        assert simulation.admit(simulation.task(ServingPath.DYNAMIC, 5.0, tokens=32))
    unit = simulation.step()
    assert unit
    assert tight in unit.tasks
    assert len(unit.tasks) < 64
    assert simulation.now + unit.predicted <= tight.deadline


def test_long_texts_make_small_batches() -> None:
    simulation = Simulation()
    for _ in range(64):
        simulation.admit(simulation.task(ServingPath.THROUGHPUT, tokens=256))
    unit = simulation.step()
    assert unit
    assert len(unit.tasks) == LANES[ServingPath.THROUGHPUT].token_budget // 256


def test_a_long_text_does_not_pad_a_batch_of_short_ones() -> None:
    simulation = Simulation()
    for number in range(20):
        simulation.admit(simulation.task(ServingPath.THROUGHPUT, 5 + number / 10, tokens=256 if number == 9 else 8))
    simulation.drain()
    # Nineteen are cut into sizes that engines are warmed for; after the first two, the long one is most urgent.
    assert [(len(unit.tasks), unit.tokens) for _, unit in simulation.started] == [(16, 8), (1, 256), (2, 8), (1, 8)]


def test_latency_goes_before_everything_that_waits() -> None:
    simulation = Simulation()
    for lane in (ServingPath.DEFERRED, ServingPath.THROUGHPUT, ServingPath.DYNAMIC, ServingPath.LATENCY):
        simulation.admit(simulation.task(lane, 0.09))
    unit = simulation.step()
    assert unit
    assert unit.lane is ServingPath.LATENCY
    assert len(unit.tasks) == 1


def test_a_dynamic_request_never_waits_for_an_idle_device() -> None:
    simulation = Simulation()
    simulation.admit(simulation.task(ServingPath.DYNAMIC, 0.5))
    unit = simulation.step()
    assert unit
    assert unit.lane is ServingPath.DYNAMIC


def test_a_dynamic_request_is_held_for_company_while_bulk_fills_the_device_and_then_runs_in_time() -> None:
    simulation = Simulation()
    for _ in range(200):
        simulation.admit(simulation.task(ServingPath.THROUGHPUT, None))
    arrived = simulation.now
    simulation.admit(simulation.task(ServingPath.DYNAMIC, 0.4))
    simulation.admit(simulation.task(ServingPath.DYNAMIC, 0.4))
    simulation.drain()
    started, unit = next((at, unit) for at, unit in simulation.started if unit.lane is ServingPath.DYNAMIC)
    assert len(unit.tasks) == 2
    # Held at most min(50 ms, 25 % of 400 ms), and some bulk ran meanwhile.
    assert arrived < started <= arrived + LANES[ServingPath.DYNAMIC].max_delay
    assert simulation.started[0][1].lane is ServingPath.THROUGHPUT


@pytest.mark.parametrize(
    ("lane", "below"),
    [(ServingPath.DYNAMIC, ServingPath.THROUGHPUT), (ServingPath.THROUGHPUT, ServingPath.DEFERRED)],
)
@pytest.mark.parametrize("delay_ms", [0, 20, 50])
def test_each_lane_holds_a_request_for_as_long_as_its_setting_says(
    lane: ServingPath, below: ServingPath, delay_ms: int
) -> None:
    chosen = environment.load(ServiceSettings, {f"TANDEM_{lane.upper()}_MAX_DELAY_MS": str(delay_ms)})
    simulation = Simulation(lanes=lanes(chosen, Device.CPU))
    for _ in range(200):
        simulation.admit(simulation.task(below))
    arrived = simulation.now
    simulation.admit(simulation.task(lane, 0.4))
    simulation.drain()
    began = next(at for at, unit in simulation.started if unit.lane is lane)
    # For a unit of the lane below at least, where it is held at all; the share that it earns may end that early.
    assert (UNIT_SECONDS if delay_ms else 0.0) <= began - arrived + 1e-9 <= delay_ms / 1000 + 2e-9


def test_nothing_is_held_where_the_device_would_idle() -> None:
    chosen = environment.load(ServiceSettings, {f"TANDEM_{it}_MAX_DELAY_MS": "50" for it in ("DYNAMIC", "THROUGHPUT")})
    for lane in (ServingPath.DYNAMIC, ServingPath.THROUGHPUT):
        simulation = Simulation(streams=2, lanes=lanes(chosen, Device.CPU))
        simulation.admit(simulation.task(ServingPath.DEFERRED))
        simulation.admit(simulation.task(lane, 0.4))
        # The deferred text has one stream; nothing is left that the other could do meanwhile.
        started = [unit.lane for unit in (simulation.start(), simulation.start()) if unit]
        assert started == [ServingPath.DEFERRED, lane]


def test_bulk_runs_in_full_batches_when_alone() -> None:
    simulation = Simulation()
    for _ in range(64):
        simulation.admit(simulation.task(ServingPath.THROUGHPUT))
    unit = simulation.step()
    assert unit
    assert len(unit.tasks) == 64


def test_the_infeasible_is_refused_at_the_door_with_a_hint() -> None:
    simulation = Simulation()
    while simulation.admit(simulation.task(ServingPath.LATENCY, 0.05)):
        pass
    # 80 % of 50 ms hold some 19 answers of 2.1 ms; the lane's 64 places are not what filled up.
    assert 10 <= simulation.scheduler.waiting(ServingPath.LATENCY) <= 25
    with pytest.raises(Overloaded, match="too late; retry in") as refusal:
        simulation.scheduler.admit([simulation.task(ServingPath.LATENCY, 0.05)], simulation.now)
    assert 0 < refusal.value.retry_after < 0.05


def test_a_device_that_hangs_closes_the_door() -> None:
    simulation = Simulation(slowness=1_000.0)
    assert simulation.admit(simulation.task(ServingPath.LATENCY, 0.05))
    assert simulation.start()
    # As long as the unit may still end in time, the next one may come; and the later it is, the less it is believed.
    assert simulation.admit(simulation.task(ServingPath.LATENCY, 0.05))
    simulation.now += 0.1
    assert not simulation.admit(simulation.task(ServingPath.LATENCY, 0.05))
    assert simulation.admit(simulation.task(ServingPath.LATENCY, 0.5))


def test_a_full_lane_refuses_and_a_request_of_many_texts_is_admitted_whole_or_not() -> None:
    simulation = Simulation()
    places = LANES[ServingPath.THROUGHPUT].max_concurrent
    for _ in range(places - 10):
        assert simulation.admit(simulation.task(ServingPath.THROUGHPUT))
    many = [simulation.task(ServingPath.THROUGHPUT) for _ in range(11)]
    assert not simulation.admit(*many)
    assert simulation.scheduler.waiting(ServingPath.THROUGHPUT) == places - 10
    assert simulation.admit(*many[:10])


def test_withdrawn_work_frees_its_place_and_does_not_run() -> None:
    simulation = Simulation()
    gone = [simulation.task(ServingPath.LATENCY, 0.09) for _ in range(5)]
    simulation.admit(*gone[:1])
    for one in gone[1:]:
        simulation.admit(one)
    for one in gone:
        simulation.scheduler.withdraw(one)
    assert simulation.scheduler.waiting(ServingPath.LATENCY) == 0
    assert simulation.step() is None


@given(arrivals, streams)
@settings(deadline=None)
def test_streams_run_a_unit_each_and_a_wide_one_runs_alone(traffic: Traffic, streams: int) -> None:
    simulation = play(traffic, streams=streams)
    assert simulation.most_at_once <= streams
    ends = [(at, at + unit.predicted, unit) for at, unit in simulation.started]
    for at, end, unit in ends:
        if unit.wide:
            assert len(unit.tasks) == 1
            assert not [other for a, e, other in ends if other is not unit and a < end - 1e-9 and at < e - 1e-9]


def test_one_lonely_text_has_all_cores_and_two_have_a_stream_each() -> None:
    simulation = Simulation(streams=2)
    simulation.admit(simulation.task(ServingPath.LATENCY, 0.09))
    lonely = simulation.start()
    assert lonely
    assert lonely.wide
    assert lonely.predicted == pytest.approx(speeds()[0][Precision.INT8].narrow.predict(1, 16) / 1.5)
    simulation.admit(simulation.task(ServingPath.LATENCY, 0.09))
    assert simulation.start() is None, "nothing runs beside a wide unit"
    simulation.admit(simulation.task(ServingPath.LATENCY, 0.09))
    simulation.finish()
    assert [unit.wide for unit in (simulation.start(), simulation.start()) if unit] == [False, False]


def test_all_cores_are_not_taken_where_one_is_as_fast() -> None:
    simulation = Simulation(streams=2)
    slow_together = Speeds(LatencyModel(0.001, 0.0, 0.0), LatencyModel(0.002, 0.0, 0.0))
    simulation.speeds[0][Precision.INT8] = slow_together
    simulation.admit(simulation.task(ServingPath.LATENCY, 0.09))
    unit = simulation.start()
    assert unit
    assert not unit.wide


def used(simulation: Simulation, lane: ServingPath) -> float:
    return sum(unit.predicted for _, unit in simulation.started if unit.lane is lane)


@pytest.mark.parametrize("lane", [ServingPath.DEFERRED, ServingPath.THROUGHPUT])
@pytest.mark.parametrize("streams", [1, 2])
def test_what_waits_below_a_busy_lane_gets_its_share_and_no_more(lane: ServingPath, streams: int) -> None:
    simulation = Simulation(streams)
    began = simulation.now
    while simulation.now < began + 5.0:
        for waiting in (lane, ServingPath.LATENCY):
            while simulation.scheduler.waiting(waiting) < 16:
                assert simulation.admit(simulation.task(waiting))
        simulation.step()
    share = used(simulation, lane) / (5.0 * streams)
    assert EARNED_SHARE[lane] * 0.95 <= share <= EARNED_SHARE[lane] * 1.5
    assert all(unit.predicted <= UNIT_SECONDS for _, unit in simulation.started if unit.lane is lane)


def test_a_text_that_takes_longer_than_a_unit_ages_too() -> None:
    simulation = Simulation()
    long = simulation.task(ServingPath.DEFERRED, tokens=256)
    assert long.seconds > UNIT_SECONDS
    simulation.admit(long)
    while long.waiting and simulation.now < 110:
        while simulation.scheduler.waiting(ServingPath.LATENCY) < 4:
            simulation.admit(simulation.task(ServingPath.LATENCY))
        simulation.step()
    assert not long.waiting


def test_an_hour_alone_costs_a_lane_no_more_than_a_unit() -> None:
    simulation = Simulation()
    while simulation.now < 110:
        simulation.admit(*[simulation.task(ServingPath.DEFERRED) for _ in range(16)])
        simulation.drain()
    before = used(simulation, ServingPath.DEFERRED)
    while simulation.now < 112:
        for path in (ServingPath.DEFERRED, ServingPath.LATENCY):
            while simulation.scheduler.waiting(path) < 16:
                simulation.admit(simulation.task(path))
        simulation.step()
    assert used(simulation, ServingPath.DEFERRED) - before >= 0.01 * 2.0


def test_an_idle_hour_buys_a_lane_no_rush() -> None:
    simulation = Simulation()
    simulation.run_until(simulation.now + 3600)
    simulation.admit(*[simulation.task(ServingPath.DEFERRED) for _ in range(64)])
    simulation.admit(simulation.task(ServingPath.LATENCY, 0.09))
    assert [unit.lane for unit in (simulation.step(), simulation.step()) if unit] == [
        ServingPath.LATENCY,
        ServingPath.DEFERRED,
    ]


def test_idle_means_quiet_for_a_second_and_nothing_but_deferred_waits() -> None:
    simulation = Simulation()
    assert simulation.scheduler.idle(simulation.now)
    simulation.admit(simulation.task(ServingPath.DEFERRED))
    assert simulation.scheduler.idle(simulation.now)
    simulation.admit(simulation.task(ServingPath.LATENCY, 0.09))
    simulation.drain()
    assert not simulation.scheduler.idle(simulation.now)
    assert simulation.scheduler.idle(simulation.now + 1.0)


shapes = [(1, 8), (1, 64), (1, 256), (8, 16), (16, 32), (64, 16), (64, 32)]


@given(st.floats(0.0005, 0.01), st.floats(0.00001, 0.001), st.floats(0.000001, 0.0001))
def test_a_profile_recovers_the_machine_it_was_fitted_to(base: float, row: float, token: float) -> None:
    seconds = [base + row * rows + token * rows * tokens for rows, tokens in shapes]
    fitted = LatencyModel.fit([Measurement(*shape, s) for shape, s in zip(shapes, seconds, strict=True)])
    for (rows, tokens), expected in zip(shapes, seconds, strict=True):
        assert fitted.predict(rows, tokens) == pytest.approx(expected, rel=0.02)


def test_a_single_text_takes_what_was_measured_for_its_width() -> None:
    profile = LatencyModel.fit([Measurement(1, 8, 0.0005), Measurement(1, 16, 0.003), Measurement(16, 16, 0.010)])
    assert profile.predict(1, 8) == pytest.approx(0.0005)
    assert profile.predict(1, 16) == pytest.approx(0.003)
    profile.replace_single(16, 0.001)
    assert profile.predict(1, 16) == pytest.approx(0.001)


def test_what_short_texts_lose_on_a_busy_machine_is_not_multiplied_for_long_ones() -> None:
    profile = LatencyModel(0.0, 0.0, 0.0, {16: 0.001, 24: 0.0012, 256: 0.020})
    for _ in range(60):
        profile.observe(1, 16, 0.004)
        profile.observe(1, 24, 0.0042)
    assert profile.predict(1, 16) == pytest.approx(0.004, rel=0.1)
    # Three milliseconds more than at the warm-up, not three times as much: a request of 50 ms is still let in.
    assert 0.021 < profile.predict(1, 256) < 0.026


def test_long_texts_tell_that_a_machine_became_slower_in_proportion() -> None:
    profile = LatencyModel(0.0, 0.0, 0.0, {16: 0.001, 64: 0.004, 256: 0.020})
    for _ in range(60):
        for tokens, seconds in ((16, 0.003), (64, 0.012)):
            profile.observe(1, tokens, seconds)
    assert profile.predict(1, 16) == pytest.approx(0.003, rel=0.2)
    assert profile.predict(1, 256) > 0.040
    for _ in range(3):
        profile.observe(1, 256, 0.060)
    assert profile.predict(1, 256) == pytest.approx(0.060, rel=0.2)


def test_one_outlier_moves_a_profile_by_a_tenth() -> None:
    profile = LatencyModel(0.001, 0.0, 0.0)
    profile.observe(1, 16, 0.5)
    assert profile.predict(1, 16) == pytest.approx(0.0011)
    profile.observe(1, 16, 0.0)
    assert profile.predict(1, 16) == pytest.approx(0.0011 * 0.95)


def test_a_profile_follows_a_machine_that_became_slower() -> None:
    profile = LatencyModel(0.001, 0.0001, 0.00001)
    before = profile.predict(1, 16)
    for _ in range(60):
        profile.observe(1, 16, before * 2)
    assert profile.predict(1, 16) == pytest.approx(before * 2, rel=0.05)
    assert profile.margin >= 0.003
