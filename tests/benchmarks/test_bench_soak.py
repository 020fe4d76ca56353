"""The arithmetic of `make soak`, and that a lost call and a failed event are counted."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
import redis

from realtime_service.client import Deferred
from realtime_service.client.errors import error_of
from shared_model.types import DeferredState
from tests.benchmarks import bench_soak
from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.soak import events, memory
from tests.benchmarks.soak import load as soak_load
from tests.benchmarks.soak.load import Load
from tests.certified import certified
from tests.realtime_service.conftest import eventually


def samples(rises: float, seconds: float = 7200.0) -> list[memory.Sample]:
    """100 MB that rise by a share over the seconds after the first 900, and fall from 300 MB before."""
    after = [(at, 1e8 * (1 + rises * (at - 900) / (seconds - 900))) for at in range(900, int(seconds) + 1, 60)]
    return [(float(at), 3e8) for at in range(0, 900, 60)] + [(float(at), size) for at, size in after]


@pytest.mark.parametrize("rises", [0.0, 0.04, 0.2, -0.1])
def test_growth_is_that_of_a_line_without_the_first_minutes(rises: float) -> None:
    assert memory.growth(samples(rises), 900.0) == pytest.approx(rises, abs=1e-6)


def test_the_course_of_memory_is_its_means_over_equal_parts() -> None:
    assert memory.course([(float(at), 1e6 * at) for at in range(24)]) == [0.5 + 2 * part for part in range(12)]
    assert memory.course([(0.0, 2e6)]) == [2.0]


def test_redis_tells_of_its_data_apart_from_its_memory(redis_client: "redis.Redis") -> None:
    before = memory.account(redis_client)
    redis_client.mset({f"key-{number}": "x" * 1000 for number in range(2000)})
    after = memory.account(redis_client)
    assert after["keys"] == before["keys"] + 2000
    assert 2 <= after["dataset"] - before["dataset"] < 4
    assert after["clients"] - before["clients"] < 0.5


def test_too_short_a_run_is_not_measured() -> None:
    with pytest.raises(CannotMeasure, match="let it run for longer"):
        memory.growth(samples(0.0)[:20], 900.0)
    assert (memory.warm_seconds(7200.0), memory.warm_seconds(600.0)) == (900.0, 300.0)


def test_figures_carry_the_bounds_that_were_promised() -> None:
    assert {target.name: target.bound for target in bench_soak.TARGETS} == {
        "latency_pss_growth": "<= 0.05",
        "throughput_pss_growth": "<= 0.05",
        "router_pss_growth": "<= 0.05",
        "redis_pss_growth": "<= 0.05",
        "lost": "<= 0",
        "failed_events": "<= 0",
    }


def test_an_error_loses_its_call_and_a_refusal_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load = Load("127.0.0.1:1", certified(tmp_path).ca.read_bytes())

    def fails(code: grpc.StatusCode) -> None:
        raise error_of(code, "because")

    load._count("answered", lambda: None)
    load._count("answered", lambda: fails(grpc.StatusCode.RESOURCE_EXHAUSTED))
    load._count("answered", lambda: fails(grpc.StatusCode.INTERNAL))
    load._count("answered", lambda: next(iter(())))
    assert dict(load.ended) == {"answered": 1, "refused": 1, "lost": 2}
    assert load.lost == 2
    assert load.problems == ["answered: INTERNAL: because", "answered: StopIteration()"]
    assert capsys.readouterr().err == "lost: answered: INTERNAL: because\nlost: answered: StopIteration()\n"


def test_submitted_work_that_ends_without_an_answer_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load("127.0.0.1:1", certified(tmp_path).ca.read_bytes())
    answer: Any = object()
    ends = (
        Deferred("a", DeferredState.PUBLISHED, answer=answer),
        Deferred("b", DeferredState.FAILED, failure="it broke"),
    )
    monkeypatch.setattr(load._client, "watch", lambda *_, **__: ends)
    load._watch_together(["a", "b"])
    assert dict(load.ended) == {"deferred published": 1, "deferred failed": 1, "lost": 1}
    assert load.problems == ["b failed: it broke"]


@pytest.mark.parametrize(("patience", "ends"), [(60.0, {"asked again": 2}), (0.0, {"lost": 1})])
def test_submitted_work_is_asked_for_again_with_its_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float, ends: dict[str, int]
) -> None:
    monkeypatch.setattr(soak_load, "SUBMIT_SECONDS", 0.0)
    monkeypatch.setattr(soak_load, "AGAIN_SECONDS", patience)
    load, asked = Load("127.0.0.1:1", certified(tmp_path).ca.read_bytes()), list[list[str]]()

    def watch(ids: list[str], **_: object) -> Iterator[Deferred]:
        """Each stream brings one end, then the store does not answer."""
        asked.append(ids)
        yield Deferred(ids[0], DeferredState.PUBLISHED, answer=cast(Any, object()))
        raise error_of(grpc.StatusCode.UNAVAILABLE, "deferred work cannot be read now")

    monkeypatch.setattr(load._client, "watch", watch)
    load._count("watched", lambda: load._watch_together(["a", "b"]))
    watched = {"watched": 1, "deferred published": 2} if patience else {"deferred published": 1}
    assert dict(load.ended) == {**watched, **ends}
    assert asked == ([["a", "b"], ["b"]] if patience else [["a", "b"]])


def test_a_failed_event_is_counted_and_stops_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RELOAD_SECONDS", "ROTATE_SECONDS", "NIGHT_SECONDS"):
        monkeypatch.setattr(events, name, 0.001)

    def fails(*_: object) -> None:
        raise OSError("no disk")

    monkeypatch.setattr(events.pointer, "promote", fails)
    monkeypatch.setattr(events.Nights, "run", lambda self: None)
    place: Any = SimpleNamespace(
        redis_url="", store=SimpleNamespace(files=SimpleNamespace(root="")), client=None, second=""
    )
    with events.happening(place, certified(tmp_path), tmp_path) as happened:
        eventually(lambda: happened["failed reload"] >= 2 and happened["rotation"] and happened["night"])
    assert happened["reload"] == 0
    assert "reload: no disk" in capsys.readouterr().err


@pytest.mark.proof
def test_a_short_soak_loses_nothing(tmp_path: Path) -> None:
    """Memory has no time to settle, so nothing is said of it."""
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.bench_soak",
        "--minutes",
        "2",
        "--out",
        str(tmp_path / "it.json"),
    ]
    assert subprocess.run(command, check=False).returncode == 0
    read = json.loads((tmp_path / "it.json").read_text())
    values = {it["name"]: it["value"] for it in read["figures"]}
    assert (values["lost"], values["failed_events"]) == (0, 0)
    assert read["conditions"]["events"]["reload"] >= 1
    assert min(read["conditions"]["ends"][it] for it in ("answered", "cancelled", "streamed", "submitted")) > 0
