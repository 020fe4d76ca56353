"""The arithmetic of `make bench-router`; what it measures is tested in tests/realtime_service."""

import random
import re

import pytest

from realtime_service.errors import Overloaded
from realtime_service.routing.overrides import Policy
from realtime_service.routing.policy import decide
from tests.benchmarks import bench_router, harness, rounds
from tests.benchmarks.bench_router import GROUPS
from tests.benchmarks.harness import Place, Target
from tests.benchmarks.rounds import Group
from tests.benchmarks.router import deciding, fleet


def test_figures_carry_the_bounds_that_were_promised() -> None:
    promised = {target.name: target.bound for target in rounds.targets(GROUPS, list(GROUPS))}
    assert promised == {
        "decide_p99_us": "<= 20",
        "forward_p50_ms": "<= 1.0",
        "heartbeat_core_share": "<= 0.01",
        "submit_per_s": ">= 5000",
    }
    assert all(re.fullmatch(r"[a-z_0-9]+", name) for name in promised)


def test_what_was_not_measured_is_absent_and_what_was_not_promised_is_a_condition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(GROUPS, "decide", Group(lambda place: {}, (Target("decide_p99_us", "us", "<= 20"),)))
    found = [{"decide_p99_us": 7.0, bench_router.WORST: 90.04}, {}]
    promised = rounds.runs([bench_router.promised(figures) for figures in found])
    result = harness.result(rounds.targets(GROUPS, ["decide", "submit"]), promised, Place({}, {}, ""))
    assert {figure.name: figure.runs for figure in result.figures} == {"decide_p99_us": (7.0,)}
    assert bench_router.conditions(found) == {bench_router.WORST: [90.0]}


def test_decisions_are_made_on_64_replicas_and_some_requests_make_it_look_at_all_of_them() -> None:
    draw = random.Random(5)
    snapshot = deciding.router(draw)
    assert len(snapshot.replicas) == fleet.REPLICAS == 64
    served = [decide(deciding.request(draw, deciding.ENOUGH), Policy(), snapshot, draw.random()) for _ in range(200)]
    assert len({decision.replica for decision in served}) > 32
    scarce = [decide(deciding.request(draw, deciding.SCARCE), Policy(), snapshot, draw.random()) for _ in range(200)]
    # If both replicas of a power-of-two draw are late, the router considers all replicas.
    assert len({decision.replica for decision in scarce}) < len({decision.replica for decision in served}) / 2
    with pytest.raises(Overloaded):
        decide(deciding.request(draw, deciding.NONE), Policy(), snapshot, 0.5)
