"""`top`: rates and quantiles between two readings of several replicas, and a real service in a terminal."""

import math

import pytest
from prometheus_client import generate_latest

from realtime_service.__main__ import main
from realtime_service.cli import top
from realtime_service.cli.top import Reading
from realtime_service.client import Client
from realtime_service.metrics import Metrics, Outcome
from realtime_service.settings import ServiceSettings, lanes
from shared_model.types import Device, Priority, ServingPath
from tests.realtime_service.conftest import RunningService


def replica() -> Metrics:
    return Metrics(list(lanes(ServiceSettings(), Device.CPU).values()))


def reading(at: float, *replicas: Metrics) -> Reading:
    made = Reading(at)
    for it in replicas:
        made.add(generate_latest(it.registry).decode())
    return made


def cells(shown: str) -> dict[str, list[str]]:
    """The two cells of each row; of rows with one name, the first."""
    found: dict[str, list[str]] = {}
    for line in shown.splitlines()[1:]:
        if len(line) == 60:
            found.setdefault(line[:24].rstrip(), [line[24:42].strip(), line[42:].strip()])
    return found


def test_rates_are_of_the_time_between_two_readings_and_of_all_replicas() -> None:
    one, two = replica(), replica()
    for _ in range(1_000):
        one.answered(ServingPath.LATENCY, 5.0, 0.0, 1, met=False, model="m")
    before = reading(100.0, one, two)
    for it in (one, two):
        for _ in range(19):
            it.answered(ServingPath.LATENCY, 0.004, 0.0, 1, met=True, model="m")
        it.ended(ServingPath.LATENCY, Outcome.REFUSED, "m")
    two.set_queue_depth(ServingPath.THROUGHPUT, 7)
    two.set_utilisation(ServingPath.THROUGHPUT, 0.4)
    shown = cells(top.frame(before, reading(102.0, one, two)))
    assert shown["answers a second"] == ["19.0", "0.0"]
    assert shown["  target"] == ["50", "1000"]
    # Of 3 to 5 ms; what was before is not counted.
    assert shown["p95"] == ["4.9 ms", "–"]
    assert shown["in time"] == ["95.0 %", "–"]
    assert shown["refused a second"] == ["1.0", "0.0"]
    assert (shown["waiting"][1], shown["load, highest"][1]) == ("7", "40 %")


def test_a_quantile_is_that_of_prometheus() -> None:
    assert top.quantile(0.95, [(1.0, 50.0), (2.0, 100.0), (math.inf, 100.0)]) == pytest.approx(1.9)
    assert top.quantile(0.95, [(1.0, 50.0), (math.inf, 100.0)]) == 1.0
    assert math.isnan(top.quantile(0.95, [(1.0, 0.0), (math.inf, 0.0)]))
    assert math.isnan(top.quantile(0.95, []))


def test_a_replica_that_began_again_has_no_negative_rate() -> None:
    one = replica()
    one.answered(ServingPath.LATENCY, 0.004, 0.0, 1, met=True, model="m")
    assert cells(top.frame(reading(1.0, one), reading(2.0, replica())))["answers a second"] == ["0.0", "0.0"]


def test_a_service_is_shown(service: RunningService, client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.score("where is my card", priority=Priority.REAL_TIME)
    address = service.metrics.split("/")[2]
    status = main(["top", "--metrics", f"{address},127.0.0.1:1", "--seconds", "0.1", "--frames", "1"])
    shown = capsys.readouterr().out
    assert status == 0
    assert cells(shown)["  target"] == ["50", "1000"]
    assert "releases: minilm-banking77-" in shown
    assert "Redis: reached" in shown
    assert "no answer: 127.0.0.1:1" in shown


@pytest.mark.parametrize("address", ["127.0.0.1:1", "file:///etc/passwd"])
def test_without_any_answer_one_line_says_so(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--metrics", address, "--frames", "1"]) == 2
    assert "--metrics" in capsys.readouterr().err
