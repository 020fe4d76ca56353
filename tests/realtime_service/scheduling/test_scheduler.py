"""The scheduler under a simulated clock: the promises of its docstring, for traffic that hypothesis generates."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from realtime_service.errors import Overloaded
from realtime_service.scheduling.batch import Batch
from realtime_service.scheduling.latency_model import LatencyModel, Measurement, VariantLatency
from realtime_service.scheduling.queue import Task
from realtime_service.scheduling.scheduler import (
    BULK,
    DELIVERY_SECONDS,
    DELIVERY_SHARE,
    FAIR_SHARE,
    INTERACTIVE,
    STARVED_SECONDS,
    TOGETHER_SECONDS,
    WIDE_TRIED_EVERY,
    Scheduler,
)
from realtime_service.settings import Lane, ServiceSettings, lanes
from shared_model import settings as environment
from shared_model.encoding import Encoding
from shared_model.types import Device, Precision, ServingPath

LANES = lanes(ServiceSettings(), Device.CPU)
#: With two texts a call in the latency lane.
PAIRS = lanes(environment.load(ServiceSettings, {"TANDEM_LATENCY_MAX_ROWS": "2"}), Device.CPU)
BULK_BATCH_SECONDS = 0.010

#: Round numbers near the measured ones: INT8 2 ms for 1×16, BF16 64×32 in about 100 ms. Wide is 1.5 times as fast.
NUMBERS = {Precision.INT8: (0.0015, 0.0001, 0.00002), Precision.BF16: (0.0015, 0.0002, 0.00004)}
RELEASES = 2


def variants() -> list[dict[Precision, VariantLatency]]:
    """The variants of two releases."""

    def one(precision: Precision) -> VariantLatency:
        numbers = NUMBERS[precision]
        wide = LatencyModel(*(number / 1.5 for number in numbers)) if precision is Precision.INT8 else None
        return VariantLatency(LatencyModel(*numbers), wide)

    return [{precision: one(precision) for precision in NUMBERS} for _ in range(RELEASES)]


@dataclass
class Simulation:
    """A device whose batches take `slowness` times their predicted time, and a record of its events."""

    streams: int = 1
    slowness: float = 1.0
    ahead: int = 0
    beside: int = 0
    lanes: Mapping[ServingPath, Lane] = field(default_factory=lambda: LANES)
    variants: list[dict[Precision, VariantLatency]] = field(default_factory=variants)
    now: float = 100.0
    admitted: list[Task] = field(default_factory=list)
    started: list[tuple[float, Batch]] = field(default_factory=list)
    running: dict[Batch, float] = field(default_factory=dict)
    expired: list[Task] = field(default_factory=list)
    most_at_once: int = 0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.lanes, self.streams, BULK_BATCH_SECONDS, self.ahead, self.beside)

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
        return Task(lane, encoding, self.variants[release][LANES[lane].precision], self.now, deadline, real_time)

    def admit(self, *tasks: Task) -> bool:
        try:
            self.scheduler.admit(tasks, self.now)
        except Overloaded:
            return False
        self.admitted += tasks
        return True

    def start(self) -> Batch | None:
        """Start one batch; None when none can start now."""
        while True:
            batch, expired = self.scheduler.next_batch(self.now)
            self.expired += expired
            if batch:
                self.started.append((self.now, batch))
                self.scheduler.started(batch, self.now)
                begin = sorted(self.running.values())[-self.streams] if batch.ahead else self.now
                self.running[batch] = begin + batch.predicted * self.slowness
                self.most_at_once = max(self.most_at_once, len(self.running))
            if batch or not expired:
                return batch

    def finish(self) -> None:
        """Advance to the end of the next batch."""
        batch, self.now = min(self.running.items(), key=lambda item: item[1])
        del self.running[batch]
        self.scheduler.finished(batch, batch.predicted * self.slowness)

    def step(self) -> Batch | None:
        """Start one batch, after the end of others if need be; None when nothing is queued."""
        while not (batch := self.start()) and self.running:
            self.finish()
        return batch

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
    ended = [one for _, batch in simulation.started for one in batch.tasks] + simulation.expired
    ended += [one for one in simulation.admitted if one.withdrawn]
    assert sorted(map(id, ended)) == sorted(map(id, simulation.admitted))


@given(arrivals, st.floats(1, 8), streams)
@settings(deadline=None)
def test_nothing_starts_that_is_predicted_to_finish_late(traffic: Traffic, slowness: float, streams: int) -> None:
    for started, batch in play(traffic, slowness, streams).started:
        for one in batch.tasks:
            assert one.deadline is None or started + batch.predicted <= one.deadline + 1e-9


@given(arrivals)
@settings(deadline=None)
def test_batches_stay_inside_rows_and_tokens(traffic: Traffic) -> None:
    for _, batch in play(traffic).started:
        lane = LANES[batch.lane]
        assert len(batch.tasks) <= lane.max_rows
        assert len(batch.tasks) == 1 or len(batch.tasks) * batch.tokens <= lane.token_budget
        assert batch.tokens >= max(one.encoding.tokens for one in batch.tasks)


@given(arrivals)
@settings(deadline=None)
def test_a_batch_is_of_one_engine_and_one_padded_width(traffic: Traffic) -> None:
    for _, batch in play(traffic).started:
        assert {(one.latency, one.tokens) for one in batch.tasks} == {(batch.tasks[0].latency, batch.tokens)}


@given(arrivals)
@settings(deadline=None)
def test_a_batch_is_led_by_its_lanes_most_urgent_task_and_filled_by_deadline(traffic: Traffic) -> None:
    simulation = Simulation()
    for _, lane, timeout, tokens, release, _, real_time in traffic:
        simulation.admit(simulation.task(lane, timeout, tokens, release, real_time))
    waiting = list(simulation.admitted)
    while any(simulation.scheduler.queue_depth(path) for path in LANES):
        batch = simulation.step()
        if batch is None:
            continue  # all queued tasks had expired
        left = [one for one in waiting if one.lane is batch.lane and one not in simulation.expired]
        assert batch.tasks[0] is min(left, key=due)
        alike = [one for one in left if (one.latency, one.tokens) == (batch.tasks[0].latency, batch.tokens)]
        assert list(batch.tasks) == sorted(alike, key=due)[: len(batch.tasks)]
        waiting = [one for one in waiting if one not in batch.tasks]


def due(one: Task) -> tuple[bool, float]:
    """The order of a lane; the sort is stable, so equal tasks stay in order of arrival."""
    wanted = one.arrived + LANES[one.lane].assumed_timeout if one.deadline is None else one.deadline
    return not one.real_time, wanted


@pytest.mark.parametrize("times", [2, 5, 10])
def test_real_time_texts_are_answered_under_any_load_of_their_lane(times: int) -> None:
    """Real-time texts ask for 70 % of the device, and others with deadlines for `times` the whole device."""
    simulation, draw = Simulation(), random.Random(times)
    seconds = simulation.task(ServingPath.LATENCY).seconds
    asked = 0
    for _ in range(4_000):
        real_time = draw.random() < 0.7 / (0.7 + times)
        simulation.run_until(simulation.now + draw.expovariate((0.7 + times) / seconds))
        asked += real_time
        simulation.admit(simulation.task(ServingPath.LATENCY, 0.050, real_time=real_time))
    simulation.drain()
    answered = {id(one) for _, batch in simulation.started for one in batch.tasks}
    real_time_answered = sum(one.real_time and id(one) in answered for one in simulation.admitted)
    assert real_time_answered >= 0.99 * asked
    # The other texts get the rest of the device.
    assert len(answered) * seconds >= 0.95 * (simulation.now - 100.0)


def test_a_batch_makes_no_text_of_another_width_late_that_can_still_be_in_time() -> None:
    simulation = Simulation()
    leader = simulation.task(ServingPath.DYNAMIC, 0.020)
    other = simulation.task(ServingPath.DYNAMIC, 0.022, tokens=128)
    assert simulation.admit(leader)
    assert simulation.admit(other)
    for _ in range(60):
        assert simulation.admit(simulation.task(ServingPath.DYNAMIC, 5.0))
    simulation.drain()
    assert not simulation.expired
    assert len(simulation.started[0][1].tasks) > 1


@given(arrivals, streams)
@settings(deadline=None)
def test_batches_are_short_while_work_of_an_interactive_lane_above_is_about(traffic: Traffic, streams: int) -> None:
    simulation = play(traffic, streams=streams)
    lanes = list(simulation.lanes)
    for started, batch in simulation.started:
        above = {path for path in lanes[: lanes.index(batch.lane)] if path in INTERACTIVE}
        about = any(started - 1.0 < one.arrived <= started for one in simulation.admitted if one.lane in above)
        if about and len(batch.tasks) > 1:
            assert batch.predicted <= BULK_BATCH_SECONDS


#: Few kinds, so that long texts meet.
long_arrivals = st.lists(
    st.tuples(
        st.floats(0, 0.02),
        st.sampled_from([ServingPath.LATENCY, ServingPath.THROUGHPUT]),
        st.none(),
        st.sampled_from([16, 256]),
        st.just(0),
        st.just(False),
        st.just(False),
    ),
    min_size=10,
    max_size=30,
)


@given(long_arrivals, st.integers(2, 4))
@settings(deadline=None)
def test_long_texts_leave_a_stream_while_work_of_an_interactive_lane_above_is_about(
    traffic: Traffic, streams: int
) -> None:
    simulation = play(traffic, streams=streams)
    lanes, started = list(simulation.lanes), list[tuple[float, Batch]]()
    for now, batch in simulation.started:
        above = {path for path in lanes[: lanes.index(batch.lane)] if path in INTERACTIVE}
        about = any(now - 1.0 < one.arrived <= now for one in simulation.admitted if one.lane in above)
        started.append((now, batch))
        if about and batch.tasks[0].undisturbed > BULK_BATCH_SECONDS:
            running = [it for at, it in started if now < at + it.predicted - 1e-9]
            assert sum(it.tasks[0].undisturbed > BULK_BATCH_SECONDS for it in running) < streams


def test_short_texts_pass_a_long_one_that_leaves_a_stream_and_both_are_had_by_long_ones_a_second_later() -> None:
    simulation = Simulation(streams=2)
    simulation.admit(simulation.task(ServingPath.LATENCY, 0.09))
    simulation.drain()
    for tokens in (256, 256, 16, 256):
        simulation.admit(simulation.task(ServingPath.THROUGHPUT, tokens=tokens))
    assert [batch.tokens for batch in (simulation.start(), simulation.start()) if batch] == [256, 16]
    simulation.finish()
    assert simulation.start() is None, "the other stream is left"
    simulation.now += 1.0
    assert simulation.start()


@pytest.mark.parametrize("beside", [True, False])
def test_dynamic_batches_are_short_beside_the_latency_lane_only(beside: bool) -> None:
    simulation = Simulation()
    if beside:
        assert simulation.admit(simulation.task(ServingPath.LATENCY, 0.099))
    for _ in range(16):
        assert simulation.admit(simulation.task(ServingPath.DYNAMIC, 2.0, tokens=40))
    simulation.drain()
    longest = max(batch.predicted for _, batch in simulation.started if batch.lane is ServingPath.DYNAMIC)
    assert (longest <= BULK_BATCH_SECONDS) is beside


def test_what_a_slow_device_left_too_late_is_dropped_and_not_run() -> None:
    simulation = Simulation(slowness=6)
    waiting = [simulation.task(ServingPath.LATENCY, 0.05) for _ in range(12)]
    assert all(simulation.admit(one) for one in waiting)
    simulation.drain()
    assert simulation.expired
    assert sum(len(batch.tasks) for _, batch in simulation.started) + len(simulation.expired) == len(waiting)
    assert all(at + batch.predicted <= waiting[0].deadline for at, batch in simulation.started)


@pytest.mark.parametrize(("timeout", "before"), [(0.05, 0.05 * DELIVERY_SHARE), (1.0, DELIVERY_SECONDS)])
def test_a_text_is_dropped_whose_answer_would_be_on_its_way_at_its_deadline(timeout: float, before: float) -> None:
    simulation = Simulation()
    one, other = (simulation.task(ServingPath.LATENCY, timeout) for _ in range(2))
    assert simulation.admit(one)
    assert simulation.admit(other)
    simulation.now += timeout - before - one.seconds - 1e-6
    assert simulation.start()
    simulation.finish()
    assert other.deadline
    assert simulation.now + other.seconds < other.deadline
    assert simulation.start() is None
    assert simulation.expired == [other]


def test_a_batch_does_not_grow_past_its_tightest_deadline() -> None:
    simulation = Simulation()
    tight = simulation.task(ServingPath.DYNAMIC, 0.020)
    assert simulation.admit(tight)
    for _ in range(63):
        assert simulation.admit(simulation.task(ServingPath.DYNAMIC, 5.0, tokens=32))
    batch = simulation.step()
    assert batch
    assert tight in batch.tasks
    assert len(batch.tasks) < 64
    assert simulation.now + batch.predicted <= tight.deadline


def test_long_texts_make_small_batches() -> None:
    simulation = Simulation()
    for _ in range(64):
        simulation.admit(simulation.task(ServingPath.THROUGHPUT, tokens=256))
    batch = simulation.step()
    assert batch
    assert len(batch.tasks) == LANES[ServingPath.THROUGHPUT].token_budget // 256


def test_a_long_text_does_not_pad_a_batch_of_short_ones() -> None:
    simulation = Simulation()
    for number in range(20):
        simulation.admit(simulation.task(ServingPath.THROUGHPUT, 5 + number / 10, tokens=256 if number == 9 else 8))
    simulation.drain()
    # The nineteen make batches of warmed sizes; after the first, the long text is the most urgent one.
    assert [(len(batch.tasks), batch.tokens) for _, batch in simulation.started] == [(16, 8), (1, 256), (2, 8), (1, 8)]


def test_latency_goes_before_everything_that_waits() -> None:
    simulation = Simulation()
    for lane in (ServingPath.DEFERRED, ServingPath.THROUGHPUT, ServingPath.DYNAMIC, ServingPath.LATENCY):
        simulation.admit(simulation.task(lane, 0.09))
    batch = simulation.step()
    assert batch
    assert batch.lane is ServingPath.LATENCY
    assert len(batch.tasks) == 1


def test_a_dynamic_request_never_waits_for_an_idle_device() -> None:
    simulation = Simulation()
    simulation.admit(simulation.task(ServingPath.DYNAMIC, 0.5))
    batch = simulation.step()
    assert batch
    assert batch.lane is ServingPath.DYNAMIC


def test_a_dynamic_request_is_delayed_for_batch_mates_while_bulk_fills_the_device_and_then_runs_in_time() -> None:
    simulation = Simulation()
    for _ in range(200):
        simulation.admit(simulation.task(ServingPath.THROUGHPUT, None))
    arrived = simulation.now
    simulation.admit(simulation.task(ServingPath.DYNAMIC, 0.4))
    simulation.admit(simulation.task(ServingPath.DYNAMIC, 0.4))
    simulation.drain()
    started, batch = next((at, batch) for at, batch in simulation.started if batch.lane is ServingPath.DYNAMIC)
    assert len(batch.tasks) == 2
    # The batching delay is at most min(50 ms, 25 % of 400 ms), and some bulk ran meanwhile.
    assert arrived < started <= arrived + LANES[ServingPath.DYNAMIC].max_delay
    assert simulation.started[0][1].lane is ServingPath.THROUGHPUT


@pytest.mark.parametrize(
    ("lane", "below"),
    [(ServingPath.DYNAMIC, ServingPath.THROUGHPUT), (ServingPath.THROUGHPUT, ServingPath.DEFERRED)],
)
@pytest.mark.parametrize("delay_ms", [0, 20, 50])
def test_each_lane_delays_a_request_for_as_long_as_its_setting_says(
    lane: ServingPath, below: ServingPath, delay_ms: int
) -> None:
    chosen = environment.load(ServiceSettings, {f"TANDEM_{lane.upper()}_MAX_DELAY_MS": str(delay_ms)})
    simulation = Simulation(lanes=lanes(chosen, Device.CPU))
    for _ in range(200):
        simulation.admit(simulation.task(below))
    arrived = simulation.now
    simulation.admit(simulation.task(lane, 0.4))
    simulation.drain()
    began = next(at for at, batch in simulation.started if batch.lane is lane)
    # A delay lasts at least a batch of the lane below; credit may end it early.
    assert (BULK_BATCH_SECONDS if delay_ms else 0.0) <= began - arrived + 1e-9 <= delay_ms / 1000 + 2e-9


def test_nothing_is_delayed_where_the_device_would_idle() -> None:
    chosen = environment.load(ServiceSettings, {f"TANDEM_{it}_MAX_DELAY_MS": "50" for it in ("DYNAMIC", "THROUGHPUT")})
    for lane in (ServingPath.DYNAMIC, ServingPath.THROUGHPUT):
        simulation = Simulation(streams=2, lanes=lanes(chosen, Device.CPU))
        simulation.admit(simulation.task(ServingPath.DEFERRED))
        simulation.admit(simulation.task(lane, 0.4))
        # The deferred text has one stream; there is no other work for the second stream.
        started = [batch.lane for batch in (simulation.start(), simulation.start()) if batch]
        assert started == [ServingPath.DEFERRED, lane]


def test_bulk_runs_in_full_batches_when_alone() -> None:
    simulation = Simulation()
    for _ in range(64):
        simulation.admit(simulation.task(ServingPath.THROUGHPUT))
    batch = simulation.step()
    assert batch
    assert len(batch.tasks) == 64


def test_the_infeasible_is_refused_at_admission_with_a_hint() -> None:
    simulation = Simulation()
    while simulation.admit(simulation.task(ServingPath.LATENCY, 0.05)):
        pass
    # 80 % of 50 ms hold some 33 answers, two in 2.3 ms; the limit of 64 queued texts is not reached.
    assert 20 <= simulation.scheduler.queue_depth(ServingPath.LATENCY) <= 40
    with pytest.raises(Overloaded, match="too late; retry in") as refusal:
        simulation.scheduler.admit([simulation.task(ServingPath.LATENCY, 0.05)], simulation.now)
    assert 0 < refusal.value.retry_after < 0.05


def test_a_device_that_hangs_rejects_new_requests() -> None:
    simulation = Simulation(slowness=1_000.0)
    assert simulation.admit(simulation.task(ServingPath.LATENCY, 0.05))
    assert simulation.start()
    # A request is admitted while the running batch may still end in time; then its predicted end recedes.
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
    assert simulation.scheduler.queue_depth(ServingPath.THROUGHPUT) == places - 10
    assert simulation.admit(*many[:10])


def test_withdrawn_work_frees_its_place_and_does_not_run() -> None:
    simulation = Simulation()
    gone = [simulation.task(ServingPath.LATENCY, 0.09) for _ in range(5)]
    simulation.admit(*gone[:1])
    for one in gone[1:]:
        simulation.admit(one)
    for one in gone:
        simulation.scheduler.withdraw(one)
    assert simulation.scheduler.queue_depth(ServingPath.LATENCY) == 0
    assert simulation.step() is None


@given(arrivals, streams)
@settings(deadline=None)
def test_streams_run_a_batch_each_and_a_wide_one_runs_alone(traffic: Traffic, streams: int) -> None:
    simulation = play(traffic, streams=streams)
    assert simulation.most_at_once <= streams
    ends = [(at, at + batch.predicted, batch) for at, batch in simulation.started]
    for at, end, batch in ends:
        if batch.wide:
            assert len(batch.tasks) == 1
            assert not [other for a, e, other in ends if other is not batch and a < end - 1e-9 and at < e - 1e-9]


def test_one_text_alone_has_all_cores_and_two_have_a_stream_each() -> None:
    simulation = Simulation(streams=2)
    simulation.admit(simulation.task(ServingPath.LATENCY, 0.09))
    single = simulation.start()
    assert single
    assert single.wide
    assert single.predicted == pytest.approx(variants()[0][Precision.INT8].narrow.predict(1, 16) / 1.5)
    simulation.admit(simulation.task(ServingPath.LATENCY, 0.09))
    assert simulation.start() is None, "no batch runs beside a wide one"
    simulation.admit(simulation.task(ServingPath.LATENCY, 0.09))
    simulation.finish()
    assert [batch.wide for batch in (simulation.start(), simulation.start()) if batch] == [False, False]


def test_a_text_that_waited_for_a_wide_one_leaves_a_core_to_the_next() -> None:
    simulation = Simulation(streams=2)
    for _ in range(2):
        simulation.admit(simulation.task(ServingPath.LATENCY, 0.09))
        simulation.start()
    simulation.finish()
    assert not simulation.start().wide  # type: ignore[union-attr]
    simulation.admit(simulation.task(ServingPath.LATENCY, 0.09))
    assert simulation.start(), "it runs beside the one that waited"


@given(st.integers(1, 20), streams)
def test_single_texts_share_a_batch_only_where_more_wait_than_streams_are_free(waiting: int, streams: int) -> None:
    simulation = Simulation(streams=streams, lanes=PAIRS)
    for _ in range(waiting):
        simulation.admit(simulation.task(ServingPath.LATENCY, 10.0))
    running = []
    while batch := simulation.start():
        running.append(len(batch.tasks))
    assert len(running) == min(waiting, streams)
    assert max(running) <= 2
    assert sum(running) == min(waiting, 2 * streams)


def test_all_cores_are_not_taken_where_one_is_as_fast() -> None:
    simulation = Simulation(streams=2)
    slow_together = VariantLatency(LatencyModel(0.001, 0.0, 0.0), LatencyModel(0.002, 0.0, 0.0))
    simulation.variants[0][Precision.INT8] = slow_together
    simulation.admit(simulation.task(ServingPath.LATENCY, 0.09))
    batch = simulation.start()
    assert batch
    assert not batch.wide


def test_a_text_by_itself_has_one_core_while_other_calls_come_and_soon_after() -> None:
    """The queues do not show the others: they wait for the event loop, which runs short wide batches itself."""
    simulation = Simulation(streams=2)
    assert alone(simulation, 0.09).wide
    simulation.scheduler.admit([simulation.task(ServingPath.LATENCY, 0.09)], simulation.now, alone=False)
    batch, together = simulation.start(), simulation.now
    assert batch
    assert not batch.wide
    simulation.finish()
    while simulation.now - together < TOGETHER_SECONDS:
        assert not alone(simulation, 0.09).wide
    assert alone(simulation, 0.09).wide


def test_callers_that_take_turns_have_a_core_each() -> None:
    """Of two callers, one's text comes alone whenever the other's answer is on its way."""
    simulation = Simulation(streams=2)
    for _ in range(2):
        simulation.admit(simulation.task(ServingPath.LATENCY, 0.09))
        simulation.start()
    simulation.finish()
    assert simulation.start(), "it waited for the first"
    simulation.finish()
    assert not alone(simulation, 0.09).wide


def alone(simulation: Simulation, timeout: float | None) -> Batch:
    """The batch of a text that comes to an idle device, and ends."""
    simulation.admit(simulation.task(ServingPath.LATENCY, timeout))
    batch = simulation.start()
    assert batch
    simulation.finish()
    return batch


def test_all_cores_are_tried_again_now_and_then_and_taken_once_they_are_faster() -> None:
    """Only batches that run show that they are: what once made them slow must not close them for good."""
    simulation = Simulation(streams=2)
    wide, trials = LatencyModel(0.002, 0.0, 0.0), 0
    simulation.variants[0][Precision.INT8] = VariantLatency(LatencyModel(0.0015, 0.0, 0.0), wide)
    for _ in range(3 * WIDE_TRIED_EVERY):
        trials += alone(simulation, 0.09).wide
    assert trials == 3
    for _ in range(20):
        wide.observe(1, 16, 0.001)
    assert all(alone(simulation, 0.09).wide for _ in range(WIDE_TRIED_EVERY))


@pytest.mark.parametrize(("seconds", "timeout"), [(0.002, 0.0019), (math.inf, None)])
def test_all_cores_are_not_tried_by_a_text_that_they_would_make_late(seconds: float, timeout: float | None) -> None:
    simulation = Simulation(streams=2)
    wide = LatencyModel(seconds, 0.0, 0.0)
    simulation.variants[0][Precision.INT8] = VariantLatency(LatencyModel(0.001, 0.0, 0.0), wide)
    assert not any(alone(simulation, timeout).wide for _ in range(3 * WIDE_TRIED_EVERY))


def used(simulation: Simulation, lane: ServingPath) -> float:
    return sum(batch.predicted for _, batch in simulation.started if batch.lane is lane)


@pytest.mark.parametrize("lane", [ServingPath.DEFERRED, ServingPath.THROUGHPUT])
@pytest.mark.parametrize(("streams", "ahead"), [(1, 0), (2, 0), (2, 1)])
def test_a_lane_below_a_busy_one_gets_its_fair_share_and_no_more(lane: ServingPath, streams: int, ahead: int) -> None:
    simulation = Simulation(streams, ahead=ahead)
    began = simulation.now
    while simulation.now < began + 5.0:
        for waiting in (lane, ServingPath.LATENCY):
            while simulation.scheduler.queue_depth(waiting) < 16:
                assert simulation.admit(simulation.task(waiting))
        simulation.step()
    share = used(simulation, lane) / (5.0 * streams)
    assert FAIR_SHARE[lane] * 0.95 <= share <= FAIR_SHARE[lane] * 1.5
    assert all(batch.predicted <= BULK_BATCH_SECONDS for _, batch in simulation.started if batch.lane is lane)


def test_a_text_that_takes_longer_than_a_batch_ages_too() -> None:
    simulation = Simulation()
    long = simulation.task(ServingPath.DEFERRED, tokens=256)
    assert long.seconds > BULK_BATCH_SECONDS
    simulation.admit(long)
    while long.queued and simulation.now < 110:
        while simulation.scheduler.queue_depth(ServingPath.LATENCY) < 4:
            simulation.admit(simulation.task(ServingPath.LATENCY))
        simulation.step()
    assert not long.queued


def test_an_hour_alone_costs_a_lane_no_more_than_a_batch() -> None:
    simulation = Simulation()
    while simulation.now < 110:
        simulation.admit(*[simulation.task(ServingPath.DEFERRED) for _ in range(16)])
        simulation.drain()
    before = used(simulation, ServingPath.DEFERRED)
    while simulation.now < 112:
        for path in (ServingPath.DEFERRED, ServingPath.LATENCY):
            while simulation.scheduler.queue_depth(path) < 16:
                simulation.admit(simulation.task(path))
        simulation.step()
    assert used(simulation, ServingPath.DEFERRED) - before >= 0.01 * 2.0


def test_an_idle_hour_buys_a_lane_no_rush() -> None:
    simulation = Simulation()
    simulation.run_until(simulation.now + 3600)
    simulation.admit(*[simulation.task(ServingPath.DEFERRED) for _ in range(64)])
    simulation.admit(simulation.task(ServingPath.LATENCY, 0.09))
    assert [batch.lane for batch in (simulation.step(), simulation.step()) if batch] == [
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


def test_a_device_is_starved_while_interactive_lanes_have_less_queued_than_a_call_takes_to_be_queued() -> None:
    """Whatever runs, and however much bulk work waits."""
    simulation = Simulation(streams=2)
    assert simulation.scheduler.starved
    simulation.admit(*[simulation.task(ServingPath.THROUGHPUT) for _ in range(64)])
    assert simulation.scheduler.starved
    backlog = 0.0
    while backlog <= 2 * STARVED_SECONDS:
        assert simulation.scheduler.starved
        task = simulation.task(ServingPath.LATENCY, 1.0)
        simulation.admit(task)
        backlog += task.cost
    assert not simulation.scheduler.starved
    simulation.drain()
    assert simulation.scheduler.starved
    bulk_only = {ServingPath.THROUGHPUT: LANES[ServingPath.THROUGHPUT]}
    assert not Simulation(lanes=bulk_only).scheduler.starved


shapes = [(1, 8), (1, 64), (1, 256), (8, 16), (16, 32), (64, 16), (64, 32)]


@given(st.floats(0.0005, 0.01), st.floats(0.00001, 0.001), st.floats(0.000001, 0.0001))
def test_a_latency_model_recovers_the_machine_it_was_fitted_to(base: float, row: float, token: float) -> None:
    seconds = [base + row * rows + token * rows * tokens for rows, tokens in shapes]
    fitted = LatencyModel.fit([Measurement(*shape, s) for shape, s in zip(shapes, seconds, strict=True)])
    for (rows, tokens), expected in zip(shapes, seconds, strict=True):
        assert fitted.predict(rows, tokens) == pytest.approx(expected, rel=0.02)


def test_a_single_text_takes_what_was_measured_for_its_width() -> None:
    latency_model = LatencyModel.fit([Measurement(1, 8, 0.0005), Measurement(1, 16, 0.003), Measurement(16, 16, 0.010)])
    assert latency_model.predict(1, 8) == pytest.approx(0.0005)
    assert latency_model.predict(1, 16) == pytest.approx(0.003)
    latency_model.replace(Measurement(1, 16, 0.001))
    latency_model.replace(Measurement(2, 16, 0.0015))
    assert [latency_model.predict(rows, 16) for rows in (1, 2)] == pytest.approx([0.001, 0.0015])


def test_what_short_texts_lose_on_a_busy_machine_is_not_multiplied_for_long_ones() -> None:
    latency_model = LatencyModel(0.0, 0.0, 0.0, {16: 0.001, 24: 0.0012, 256: 0.020})
    for _ in range(60):
        latency_model.observe(1, 16, 0.004)
        latency_model.observe(1, 24, 0.0042)
    assert latency_model.predict(1, 16) == pytest.approx(0.004, rel=0.1)
    # Three milliseconds more than at the warm-up, not three times as much: a request of 50 ms is still admitted.
    assert 0.021 < latency_model.predict(1, 256) < 0.026


def test_long_texts_tell_that_a_machine_became_slower_in_proportion() -> None:
    latency_model = LatencyModel(0.0, 0.0, 0.0, {16: 0.001, 64: 0.004, 256: 0.020})
    for _ in range(60):
        for tokens, seconds in ((16, 0.003), (64, 0.012)):
            latency_model.observe(1, tokens, seconds)
    assert latency_model.predict(1, 16) == pytest.approx(0.003, rel=0.2)
    assert latency_model.predict(1, 256) > 0.040
    for _ in range(3):
        latency_model.observe(1, 256, 0.060)
    assert latency_model.predict(1, 256) == pytest.approx(0.060, rel=0.2)


def test_one_outlier_moves_a_latency_model_by_a_tenth() -> None:
    latency_model = LatencyModel(0.001, 0.0, 0.0)
    latency_model.observe(1, 16, 0.5)
    assert latency_model.predict(1, 16) == pytest.approx(0.0011)
    latency_model.observe(1, 16, 0.0)
    assert latency_model.predict(1, 16) == pytest.approx(0.0011 * 0.95)


def test_a_latency_model_follows_a_machine_that_became_slower() -> None:
    latency_model = LatencyModel(0.001, 0.0001, 0.00001)
    before = latency_model.predict(1, 16)
    for _ in range(60):
        latency_model.observe(1, 16, before * 2)
    assert latency_model.predict(1, 16) == pytest.approx(before * 2, rel=0.05)
    assert latency_model.margin >= 0.003


@given(st.lists(st.tuples(st.sampled_from(list(LANES)), st.integers(0, 30)), min_size=1, max_size=40))
@example([(ServingPath.LATENCY, 0), (ServingPath.THROUGHPUT, 0)])  # The first is on all cores.
def test_a_bulk_batch_on_a_stream_of_its_own_delays_no_interactive_one(arrivals: list[tuple[ServingPath, int]]) -> None:
    """On a GPU, whose streams share it: what a bulk batch costs an interactive one is the share of its kernels that run
    when that comes."""
    simulation = Simulation(beside=1)
    for lane, after in arrivals:
        simulation.run_until(simulation.now + after / 1000)
        simulation.admit(simulation.task(lane))
        simulation.start()
        for bulk in (True, False):
            running = [batch for batch in simulation.running if (batch.lane in BULK) == bulk]
            waiting = [it for it in LANES if (it in BULK) == bulk and simulation.scheduler.queue_depth(it)]
            assert len(running) <= 1
            # Neither for the other kind's batches, nor for batch mates while those run.
            assert running or bulk or not waiting
    simulation.drain()
    assert len(simulation.started) == len({id(batch) for _, batch in simulation.started})
    assert sum(len(batch.tasks) for _, batch in simulation.started) == len(simulation.admitted)


@pytest.mark.parametrize(("beside", "waits"), [(1, False), (0, True)])
def test_a_latency_call_starts_while_a_bulk_batch_runs_on_its_own_stream(beside: int, waits: bool) -> None:
    simulation = Simulation(beside=beside)
    simulation.admit(*(simulation.task(ServingPath.THROUGHPUT, tokens=32) for _ in range(64)))
    [bulk_ends] = [simulation.now + batch.predicted for batch in [simulation.start()] if batch]
    simulation.now += 0.005
    simulation.admit(call := simulation.task(ServingPath.LATENCY))
    predicted = simulation.scheduler.predicted_finish(ServingPath.LATENCY, call.seconds, simulation.now)
    simulation.step()
    [(began, batch)] = simulation.started[1:]
    assert (batch.lane, began) == (ServingPath.LATENCY, bulk_ends if waits else simulation.now)
    assert (predicted > bulk_ends) == waits


def test_no_interactive_text_waits_for_batch_mates_while_bulk_work_is_queued_for_another_stream() -> None:
    simulation = Simulation(beside=1)
    simulation.admit(*(simulation.task(ServingPath.THROUGHPUT, tokens=32) for _ in range(100)))
    first = simulation.start()
    simulation.admit(simulation.task(ServingPath.DYNAMIC))
    second = simulation.start()
    assert [batch and batch.lane for batch in (first, second)] == [ServingPath.THROUGHPUT, ServingPath.DYNAMIC]
    assert simulation.scheduler.queue_depth(ServingPath.THROUGHPUT)
