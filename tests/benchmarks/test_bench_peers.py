"""The arithmetic of `make bench-peers`: a refusal is no answer, and each figure compares the rows that it names."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.benchmarks import bench_peers, harness
from tests.benchmarks.bench_peers import TARGETS
from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.peers import environments, h2load, table
from tests.benchmarks.peers.h2load import Row, check_answers
from tests.benchmarks.peers.stage import AIO, DYNAMIC, FLOOR, LATENCY, LITSERVE, TRITON, WORKERS
from tests.benchmarks.rounds import runs


def test_calls_that_were_refused_are_not_answers() -> None:
    # Of 200 bytes, some smaller because they tell shorter times.
    check_answers(data_bytes=1_000 * 195, calls=1_000, answer_bytes=200)
    with pytest.raises(CannotMeasure, match="some were refused"):
        check_answers(data_bytes=900 * 200, calls=1_000, answer_bytes=200)


@pytest.mark.parametrize("refused", [0, 8])
def test_a_refused_call_of_a_burst_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: int) -> None:
    printed = "requests: 64 total, 64 started, 64 done, 64 succeeded, 0 failed, 0 errored, 0 timeout\n"
    printed += f"traffic: 20KB (20000) total, 3KB (3000) headers, 12KB ({(64 - refused) * 200}) data"
    monkeypatch.setattr(environments, "h2load", lambda: "h2load")

    def run(command: Sequence[str], **_: object) -> Any:
        [log] = (it.partition("=")[2] for it in command if it.startswith("--log-file="))
        Path(log).write_text("1000\t200\t5000\n" * 64)
        return SimpleNamespace(stdout=printed)

    monkeypatch.setattr(subprocess, "run", run)
    target = h2load.Target("http://any", tmp_path / "body", answer_bytes=200)
    if refused:
        with pytest.raises(CannotMeasure, match="some were refused"):
            h2load.burst(target, 64)
    else:
        assert len(h2load.burst(target, 64).milliseconds) == 64


def test_figures_compare_the_rows_that_they_name() -> None:
    def row(rates: dict[str, float]) -> dict[str, Row]:
        return {server: Row(rate, [4.0] * 99 + [6.0]) for server, rate in rates.items()}

    closed = {
        "c1": row({LATENCY: 300, WORKERS: 300, AIO: 240, LITSERVE: 100, TRITON: 90, FLOOR: 400}),
        "c16": row({LATENCY: 600, WORKERS: 720, AIO: 500, FLOOR: 800, DYNAMIC: 550, TRITON: 500}),
        "c64": row({DYNAMIC: 900, TRITON: 600}),
    }
    figures = bench_peers.figures(closed)
    assert list(figures) == [target.name for target in TARGETS]
    assert figures["latency_c16_of_floor"] == 0.75
    assert figures["latency_c16_over_aio"] == 1.2
    assert figures["workers_c16_of_floor"] == 0.9
    assert figures["workers_c16_over_aio"] == 1.44
    assert figures["c1_over_best_peer"] == 1.25
    assert figures["c1_p50_of_floor"] == 1.0
    assert figures["dynamic_c16_over_triton"] == 1.1
    assert figures["dynamic_c64_over_triton"] == 1.5
    assert 1.0 <= figures["c1_p99_over_p50"] <= 1.5


@pytest.mark.heavy
def test_a_package_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setitem(environments._PYTHONS, "litserve", "/no/such/python")
    with pytest.raises(CannotMeasure) as missing:
        environments.python("litserve")
    assert "\n" not in str(missing.value)
    assert "/no/such/python" in str(missing.value)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CannotMeasure, match="apt-get install nghttp2-client"):
        environments.h2load()


def test_peers_have_the_interpreter_of_tandem_and_another_one_makes_them_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = list[str]()

    def run(name: str, command: Sequence[str]) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        commands.append(command[0])

    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setattr(environments, "_run", run)
    for _ in range(2):
        environments.python("grpc")
    assert commands == [sys.executable, str(tmp_path / "grpc/bin/pip")]
    monkeypatch.setitem(environments._PYTHONS, "grpc", "/another/python")
    environments.python("grpc")
    assert commands[2:3] == ["/another/python"]


def test_the_page_gets_the_tables_of_the_last_run() -> None:
    row = {"rate": [300.0, 100.0, 200.0], "p50_ms": [4.0, 3.0, 5.0], "p99_ms": [6.0, 5.0, 7.0]}
    document = {
        "date": "2026-01-02",
        "machine": {"cpu": "A CPU", "cores": 2},
        "conditions": {"rows": {LATENCY: dict.fromkeys(("c1", "c2", "c16", "c64", "90 %"), row)}},
    }
    page = f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n"
    filled = table.filled(page, document)
    assert f"| {LATENCY} | 200 (100–300) | 200 (100–300) | 200 (100–300) | 200 (100–300) |" in filled
    assert f"| p50 / p99, ms | c1 | c16 | 90 % |\n| --- | --- | --- | --- |\n| {LATENCY} | 4.0 / 6.0 |" in filled
    assert "2026-01-02" in filled
    assert "c16: 16 connections" in filled
    assert "burst" not in filled
    assert "A CPU" in filled
    assert "old" not in filled
    assert filled.startswith("before")
    assert filled.endswith("after\n")
    assert table.filled(filled, document) == filled


def test_the_readme_has_a_place_for_the_tables() -> None:
    assert table.BEGIN in table.PAGE.read_text()
    assert table.END in table.PAGE.read_text().partition(table.BEGIN)[2]


def test_a_later_run_keeps_the_rounds_of_an_earlier_one(tmp_path: Path) -> None:
    rounds = [dict.fromkeys((target.name for target in TARGETS), float(number)) for number in (1, 2)]
    rows = {LATENCY: {"c1": {"rate": [1.0, 2.0]}}}
    out = tmp_path / "peers.json"
    place = harness.Place({}, {}, "a commit")
    harness.result(TARGETS, runs(rounds), place, {"rows": rows}).write(out)
    assert bench_peers.kept(out, "a commit") == (rows, rounds)
    with pytest.raises(CannotMeasure, match="is of commit a commit, this is another"):
        bench_peers.kept(out, "another")
    out.write_text("{}")
    with pytest.raises(CannotMeasure, match="holds no rounds"):
        bench_peers.kept(out, "a commit")
