"""The arithmetic of `make bench-switch`; the switch itself is tested in tests/realtime_service."""

import re

import pytest

from tests.benchmarks import bench_switch
from tests.benchmarks.bench_switch import Call, SteadyCalls
from tests.benchmarks.harness import CannotMeasure
from tests.realtime_service.conftest import eventually


def test_p95_is_the_nearest_rank() -> None:
    assert bench_switch._p95([float(n) for n in range(1, 101)]) == 95
    assert bench_switch._p95([3.0, 1.0, 2.0]) == 3
    with pytest.raises(CannotMeasure, match="no calls were made"):
        bench_switch._p95([])


def test_calls_belong_to_the_phase_they_were_due_in() -> None:
    load = SteadyCalls("127.0.0.1:1")
    load.calls += [Call(1.0, 10.0, "a"), Call(2.0, 20.0, "a"), Call(3.0, 30.0, "")]
    assert load.between(1.0, 3.0) == [10.0, 20.0]
    assert load.between(3.0, 9.0) == [30.0]


def test_a_call_that_gets_no_answer_is_a_failure_and_delays_no_other() -> None:
    with SteadyCalls("127.0.0.1:1") as load:
        eventually(lambda: len(load.calls) >= 5)
    assert {call.release for call in load.calls} == {""}
    first = min(call.sent for call in load.calls)
    beats = [(call.sent - first) * bench_switch.RATE for call in load.calls]
    assert all(beat == pytest.approx(round(beat)) for beat in beats)


def test_figures_carry_the_bounds_that_were_promised() -> None:
    assert {target.name: target.bound for target in bench_switch.TARGETS} == {
        "warm_p95_over_alone": "<= 2",
        "all_switched_after_warm_s": "<= 5",
        "promotion_s": "<= 60",
        "rollback_s": "<= 60",
        "failed_calls": "<= 0",
    }
    assert all(re.fullmatch(r"[a-z_0-9]+", target.name) for target in bench_switch.TARGETS)
