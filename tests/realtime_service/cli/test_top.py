"""`top`: the board as a table, and a real service in a terminal."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, make_wsgi_app

from realtime_service.__main__ import main
from realtime_service.cli import top
from realtime_service.cli.top import Reader
from realtime_service.client import Client
from realtime_service.telemetry.metrics import service_levels
from realtime_service.telemetry.metrics.service_levels import LaneFigures, ModelFigures, ReplicaFigures, Shared
from realtime_service.transport.board_pages import BoardPages
from realtime_service.transport.metrics_server import serve_metrics
from shared_model.tls import CertificateFiles
from shared_model.types import Priority
from tests.certified import Certified, certified
from tests.realtime_service.conftest import RunningService


def cells(shown: str) -> dict[str, list[str]]:
    """The cells of each row of the service levels, throughput first."""
    found: dict[str, list[str]] = {}
    for line in shown.partition("\n\n")[0].splitlines()[1:]:
        found[line[:24].rstrip()] = [line[at : at + 18].strip() for at in range(24, len(line), 18)]
    return found


def test_a_board_is_tables() -> None:
    lanes = {"latency": LaneFigures(waiting=7, load=0.4, per_text=0.01, p95_target=0.05, rate_target=50.0)}
    read = ReplicaFigures(
        "one", "10.0.0.1:50051", 2.0, ended={"latency": {"met": 38, "refused": 2}},
        within={"latency": [(0.003, 0), (0.005, 38)]}, lanes=lanes, models=[ModelFigures("m", "old", "new", 0.1)],
        failed_releases=["unfit"],
    )  # fmt: skip
    budgets = {"latency": {"hour": (1, 100), "days": (10, 100)}}
    figures = {"rows": 5, "rows_per_second": 12.5, "quarantined": 1, "release": "old"}
    nights = [
        {"ds": "2026-01-15", "model": "side", "state": "refused", "finished_at": 3600.0, **figures},
        # Of an earlier version.
        {"ds": "2026-01-14", "finished_at": 0.0, **figures},
    ]
    shared = Shared(7200.0, True, budgets, deferred=(3, 60_000), nights=nights, silent=["two"])
    shown = top.frame(service_levels.board([read], shared), ["10.0.0.7:9464 (timed out)"])
    rows = cells(shown)
    assert rows["answers a second"] == ["0.0", "19.0"]
    assert rows["  target"] == ["–", "50"]
    assert rows["p95"] == ["–", "4.9 ms"]
    assert rows["  target of p95"] == ["–", "50 ms"]
    assert rows["in time"] == ["–", "95.0%"]
    assert (rows["refused a second"][1], rows["waiting"][1], rows["load, highest"][1]) == ("1.0", "7", "40%")
    assert (rows["spare texts a second"][1], rows["  of capacity"][1]) == ("60", "60%")
    assert (rows["budget left, 1 hour"][1], rows["  missed in 1 hour"][1]) == ("80.0%", "1 of 100")
    assert rows["budget left, 28 days"] == ["–", "-100.0%"]
    assert shown.splitlines()[len(rows) + 2 :] == [
        "paths: latency 100% (19.0/s)",
        "Redis: reached",
        "deferred: 3 wait, earliest deadline in 60 s",
        "",
        "model  release  canary     replicas",
        "m      old      new (10%)  1",
        "",
        "night       model    status     ended      rows  rows/s  quarantined  release",
        "2026-01-15  side     refused    1.0 h ago  5     12      1            old",
        "2026-01-14  default  published  2.0 h ago  5     12      1            old",
        "",
        "replica  address         status      lanes    load  waiting  answers/s  unfit releases",
        "one      10.0.0.1:50051  serving     latency  40%   7        19.0       unfit",
        "two      –               no figures  –        –     –        –          –",
        "no answer: 10.0.0.7:9464 (timed out)",
    ]


def test_a_service_is_shown(service: RunningService, client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.score("where is my card", priority=Priority.REAL_TIME)
    address = service.metrics.split("/")[2]
    assert main(["top", "--metrics", f"{address},127.0.0.1:1", "--seconds", "0.1", "--frames", "1"]) == 0
    shown = capsys.readouterr().out
    assert cells(shown)["  target"][:2] == ["1000", "50"]
    assert "minilm-banking77-" in shown
    assert "Redis: reached" in shown
    assert "no answer: 127.0.0.1:1 ([Errno 111] Connection refused)" in shown


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

    top.watch(addresses, Reader(), 0.0, 3, say)
    assert [bool(cells(frame)) for frame in shown] == [True, False, True]
    assert shown[1].startswith("--metrics: no answer from 127.0.0.1:1 (")


@pytest.fixture
def mutual(tmp_path: Path) -> Iterator[tuple[str, Certified]]:
    """The figures of a replica that answers only callers with a certificate, at a name that its certificate lacks."""
    own, stack = certified(tmp_path), contextlib.AsyncExitStack()
    told = ReplicaFigures("behind-tls").to_json()

    def answer(authorization: str) -> bytes:
        return f'{{"replicas": [{told}], "shared": {{"at": 0.0}}}}'.encode()

    pages = BoardPages(make_wsgi_app(CollectorRegistry()), answer)
    files = CertificateFiles(own.settings(mutual=True))
    yield serve_metrics(stack, "127.0.0.2:0", pages, files), own
    asyncio.run(stack.aclose())


def test_a_certificate_is_shown_and_one_of_another_name_is_taken(
    mutual: tuple[str, Certified], capsys: pytest.CaptureFixture[str]
) -> None:
    address, own = mutual
    trusting = ["top", "--frames", "1", "--metrics", address, "--ca", str(own.ca)]
    showing = ["--cert", str(own.cert), "--key", str(own.key)]
    assert main([*trusting, *showing, "--tls-name", "localhost"]) == 0
    assert "behind-tls" in capsys.readouterr().out
    assert main([*trusting, *showing]) == 2
    assert "certificate is not valid for '127.0.0.2'" in capsys.readouterr().err
    assert main([*trusting, "--tls-name", "localhost"]) == 2
    assert f"no answer from {address} (" in capsys.readouterr().err
    assert main([*trusting, *showing[:2]]) == 2
    assert "--cert: a certificate and its key go together" in capsys.readouterr().err


def test_a_token_does_not_leave_this_host_in_clear(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    given = ["top", "--frames", "1", "--token-file", str(file), "--metrics"]
    for address in ("192.0.2.1:9464", "http://192.0.2.1:9464/metrics"):
        assert main([*given, address]) == 2
        assert f"the token would travel to {address} in clear" in capsys.readouterr().err
