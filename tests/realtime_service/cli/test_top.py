"""`top`: the board as a table, and a real service in a terminal."""

import pytest

from realtime_service.__main__ import main
from realtime_service.cli import top
from realtime_service.client import Client
from realtime_service.telemetry.metrics import service_levels
from realtime_service.telemetry.metrics.service_levels import LaneFigures, ModelFigures, ReplicaFigures, Shared
from shared_model.types import Priority
from tests.realtime_service.conftest import RunningService


def cells(shown: str) -> dict[str, list[str]]:
    """The two cells of each row, throughput first."""
    found: dict[str, list[str]] = {}
    for line in shown.splitlines()[1:]:
        if len(line) == 60:
            found.setdefault(line[:24].rstrip(), [line[24:42].strip(), line[42:].strip()])
    return found


def test_a_board_is_a_table() -> None:
    lanes = {"latency": LaneFigures(waiting=7, load=0.4, per_text=0.01, p95_target=0.05, rate_target=50.0)}
    read = ReplicaFigures(
        "one", seconds=2.0, ended={"latency": {"met": 38, "refused": 2}}, within={"latency": [(0.003, 0), (0.005, 38)]},
        lanes=lanes, models=[ModelFigures("m", "old", "new", 0.1)],
    )  # fmt: skip
    budgets = {"latency": {"hour": (1, 100), "days": (10, 100)}}
    shared = Shared(7200.0, True, budgets, deferred=(3, 60_000), nights=[{"ds": "2026-01-14", "finished_at": 0.0}])
    shown = top.frame(service_levels.board([read], shared), ["10.0.0.7:9464"])
    rows = cells(shown)
    assert rows["answers a second"] == ["0.0", "19.0"]
    assert rows["  target"] == ["–", "50"]
    assert rows["p95"] == ["–", "4.9 ms"]
    assert rows["in time"] == ["–", "95.0%"]
    assert (rows["refused a second"][1], rows["waiting"][1], rows["load, highest"][1]) == ("1.0", "7", "40%")
    assert (rows["spare texts a second"][1], rows["budget left, 1 hour"][1]) == ("60", "80.0%")
    assert rows["budget left, 28 days"] == ["–", "-100.0%"]
    assert shown.splitlines()[-7:] == [
        "paths: latency 100%",
        "model m: old, canary new for 10%, on 1 replicas",
        "replica one: serving, load 40%",
        "Redis: reached",
        "deferred: 3 wait, earliest deadline in 60 s",
        "last night: 2026-01-14, published 2.0 h ago",
        "no answer: 10.0.0.7:9464",
    ]


def test_a_service_is_shown(service: RunningService, client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.score("where is my card", priority=Priority.REAL_TIME)
    address = service.metrics.split("/")[2]
    assert main(["top", "--metrics", f"{address},127.0.0.1:1", "--seconds", "0.1", "--frames", "1"]) == 0
    shown = capsys.readouterr().out
    assert cells(shown)["  target"] == ["1000", "50"]
    assert ": minilm-banking77-" in shown
    assert "Redis: reached" in shown
    assert "no answer: 127.0.0.1:1" in shown


@pytest.mark.parametrize("address", ["127.0.0.1:1", "file:///etc/passwd"])
def test_without_any_answer_one_line_says_so(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--metrics", address, "--frames", "1"]) == 2
    assert "--metrics" in capsys.readouterr().err


def test_replicas_that_restart_do_not_end_it(service: RunningService) -> None:
    addresses, shown = [service.metrics], list[str]()

    def say(frame: str) -> None:
        shown.append(frame)
        # Of the frames after the first, one is of a replica that is gone.
        addresses[0] = service.metrics if len(shown) == 2 else "127.0.0.1:1"

    top.watch(addresses, None, 0.0, 3, say)
    assert [bool(cells(frame)) for frame in shown] == [True, False, True]
    assert shown[1].startswith("--metrics: 127.0.0.1:1 does not answer")
