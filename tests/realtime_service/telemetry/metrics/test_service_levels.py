"""The figures of the board: changes of counters, sums over replicas, error budgets and capacity."""

import json
import math
from collections import Counter
from typing import Any

import pytest

from realtime_service.settings import ServiceSettings, lanes
from realtime_service.telemetry.metrics import Metrics, Outcome, service_levels
from realtime_service.telemetry.metrics.service_levels import LaneFigures, ModelFigures, ReplicaFigures, Shared, Totals
from shared_model.types import Device, ServingPath

#: Of a version that tells more.
NEWER = json.dumps({"replica": "a", "lanes": {}, "models": [], "new": 1})


def replica(name: str, metrics: Metrics, before: Totals, at: float, **fields: Any) -> ReplicaFigures:
    return ReplicaFigures(name, **service_levels.window(before, metrics.totals(at)), **fields)


def measured() -> Metrics:
    return Metrics(list(lanes(ServiceSettings(), Device.CPU).values()))


def lane_of(board: dict[str, Any], name: str) -> dict[str, Any]:
    return next(it for it in board["lanes"] if it["lane"] == name)


def test_rates_are_of_the_window_and_of_all_replicas() -> None:
    one, two = measured(), measured()
    for _ in range(1_000):
        one.answered(ServingPath.LATENCY, 5.0, met=False, model="m")
    before = one.totals(100.0), two.totals(100.0)
    for it in (one, two):
        for _ in range(19):
            it.answered(ServingPath.LATENCY, 0.004, met=True, model="m")
        it.ended(ServingPath.LATENCY, Outcome.REFUSED, "m")
    read = [replica("one", one, before[0], 102.0), replica("two", two, before[1], 102.0)]
    board = service_levels.board(read, Shared(7.0))
    lane = lane_of(board, "latency")
    # Answers take 3 to 5 ms; the slow ones before the window do not count.
    assert (lane["answers_per_second"], lane["refused_per_second"]) == (19.0, 1.0)
    assert lane["p95_ms"] == pytest.approx(4.9)
    assert lane["in_time"] == pytest.approx(0.95)
    assert board["paths"] == [{"path": "latency", "per_second": 19.0, "share": 1.0}]
    assert lane_of(board, "throughput")["p95_ms"] is None


def test_paths_have_their_shares_the_largest_first() -> None:
    answered = {"latency": {"met": 1, "late": 1}, "throughput": {"met": 6, "failed": 9}}
    it = ReplicaFigures("a", seconds=2.0, ended={**answered, "none": {"deferred": 2}})
    assert [(one["path"], one["share"]) for one in service_levels.board([it], Shared(0.0))["paths"]] == [
        ("throughput", 0.6),
        ("latency", 0.2),
        ("deferred", 0.2),
    ]


@pytest.mark.parametrize(("missed", "counted", "left"), [(0, 100, 1.0), (5, 100, 0.0), (10, 100, -1.0), (0, 0, None)])
def test_a_budget_is_five_percent_of_all_that_count(missed: int, counted: int, left: float | None) -> None:
    shared = Shared(0.0, budgets={"latency": {"hour": (missed, counted)}})
    told = lane_of(service_levels.board([], shared), "latency")["budget"]["hour"]["left"]
    assert told is None if left is None else told == pytest.approx(left)


def test_remaining_capacity_is_what_lanes_of_one_device_leave() -> None:
    lane = LaneFigures(load=0.25, per_text=0.01, device="cpu")
    shared_device = {"latency": lane, "throughput": LaneFigures(load=0.5, per_text=0.002, device="cpu")}
    own_device = {"latency": LaneFigures(load=0.25, per_text=0.01, device="cuda")}
    read = [ReplicaFigures("a", lanes=shared_device), ReplicaFigures("b", lanes=own_device)]
    found = lane_of(service_levels.board(read, Shared(0.0)), "latency")
    assert found["spare_texts_per_second"] == pytest.approx(25 + 75)
    assert found["spare"] == pytest.approx(0.5)
    draining = ReplicaFigures("b", lanes=own_device, draining=True)
    assert lane_of(service_levels.board([draining], Shared(0.0)), "latency")["spare"] is None


def test_replicas_that_differ_in_a_models_release_are_two_lines() -> None:
    lanes_of = {"latency": LaneFigures()}
    read = [
        ReplicaFigures(name, lanes=lanes_of, models=[ModelFigures("m", release, canary, weight)])
        for name, release, canary, weight in (
            ("a", "old", "new", 0.1),
            ("b", "old", "new", 0.1),
            ("c", "older", "", 0.0),
        )
    ]
    models = service_levels.board(read, Shared(0.0, silent=["d"]))["models"]
    assert [(it["release"], it["canary"], it["weight"], it["replicas"]) for it in models] == [
        ("old", "new", 0.1, 2),
        ("older", "", 0.0, 1),
    ]


def test_figures_are_what_they_were_after_their_way_through_redis() -> None:
    metrics = measured()
    metrics.answered(ServingPath.LATENCY, 0.004, met=True, model="m")
    before = Totals(0.0, Counter(), Counter())
    told = replica("a", metrics, before, 1.0, lanes={"latency": LaneFigures(load=0.5)}, models=[ModelFigures("m", "r")])
    read = ReplicaFigures.from_json(told.to_json())
    assert service_levels.board([read], Shared(0.0)) == service_levels.board([told], Shared(0.0))


@pytest.mark.parametrize("text", ["{}", "[]", "not JSON", NEWER])
def test_figures_of_another_version_are_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ReplicaFigures.from_json(text)


def test_a_quantile_is_that_of_prometheus() -> None:
    assert service_levels.quantile(0.95, [(1.0, 50.0), (2.0, 100.0)], 100.0) == pytest.approx(1.9)
    assert service_levels.quantile(0.95, [(1.0, 50.0)], 100.0) == 1.0
    assert math.isnan(service_levels.quantile(0.95, [(1.0, 0.0)], 0.0))
    assert math.isnan(service_levels.quantile(0.95, [], 0.0))
