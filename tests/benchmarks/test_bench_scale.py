"""`make bench-scale`: its figures from what it saw, and all of it on few rows."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from shared_model import demo_messages
from shared_model.encoding import TokenBatch
from shared_model.releases.store import Release
from tests.benchmarks import bench_scale, rounds
from tests.benchmarks.bench_scale import GROUPS
from tests.benchmarks.nightly import corpus
from tests.benchmarks.nightly.corpus import Corpus
from tests.benchmarks.scale import sleeping
from tests.benchmarks.scale.sleeping import SleepingEngine
from tests.benchmarks.scale.usage import Seen, Usage
from tests.object_store import Proxy


def test_figures_carry_the_bounds_that_were_promised() -> None:
    promised = {target.name: target.bound for target in rounds.targets(GROUPS, list(GROUPS))}
    assert promised == {
        "driver_rss_gb": "<= 2",
        "plumbing_us_per_row": "<= 60",
        "files_per_10m": "<= 40",
        "growth": "<= 1.15",
        "resume_share": ">= 0.95",
        "frame_of_bare": ">= 0.9",
    }


def test_growth_leaves_out_what_a_night_takes_without_rows() -> None:
    assert bench_scale.growth({50: 10 + 5, 100: 10 + 10, 500: 10 + 50, 1000: 10 + 100}) == pytest.approx(1)
    assert bench_scale.growth({50: 5, 100: 10, 500: 100, 1000: 250}) == pytest.approx(3)


def test_files_of_a_day_are_counted_and_of_a_smaller_one_estimated_by_its_bytes() -> None:
    assert bench_scale.files_per_ten_millions(20_000_000, 30, 10**10) == 15
    assert bench_scale.files_per_ten_millions(1_000_000, 1, 100_000_000) == 8


def test_usage_counts_processes_that_end_and_that_begin_and_the_driver_as_one() -> None:
    usage = Usage()
    jvm, python = (1, 0.0), (2, 0.0)
    usage.add([Seen(jvm, "driver_jvm", 10.0, 100), Seen(python, "driver_python", 2.0, 50)], 0)
    usage.add([Seen(jvm, "driver_jvm", 11.0, 300), Seen((3, 5.0), "workers", 4.0, 900)], 1)
    # The same number again, for another process.
    usage.add([Seen(jvm, "driver_jvm", 11.5, 200), Seen((3, 9.0), "workers", 1.0, 900)], 2)
    assert usage.cpu == {"driver_jvm": 1.5, "driver_python": 0.0, "workers": 5.0, "executor_jvm": 0.0}
    assert usage.peak == 300


def test_usage_tells_stages_apart() -> None:
    usage = Usage()
    for now, cpu in enumerate((5.0, 6.0, 9.0)):
        usage.add([Seen((1, 0.0), "driver_jvm", cpu, 0)], now)
    found = usage.by_stage(0, {"plan": 1.0, "read": 0.5, "score": 0.5})
    assert {stage: spent["driver_jvm"] for stage, spent in found.items()} == {"plan": 1.0, "read": 1.5, "score": 1.5}


def test_the_engine_sleeps_by_tokens_and_counts_its_rows(tmp_path: Path) -> None:
    engine = SleepingEngine(3, tmp_path)
    ids = np.arange(1, 401, dtype=np.int64).reshape(20, 20)
    started = time.perf_counter()
    finished = engine.start(TokenBatch(ids, np.ones_like(ids)))
    assert time.perf_counter() - started >= 400 * sleeping.SECONDS_PER_TOKEN
    assert finished.seconds == 400 * sleeping.SECONDS_PER_TOKEN
    assert finished.result().argmax(axis=1).tolist() == (ids.sum(axis=1) % 3).tolist()
    engine.start(TokenBatch(ids[:5], np.ones_like(ids[:5])))
    assert sleeping.rows_run(tmp_path) == 25


def test_every_request_takes_longer(s3: Proxy, s3_url: str) -> None:
    from shared_model.objects import open_objects

    files = open_objects(s3_url)
    s3.delay(0.3)
    started = time.perf_counter()
    files.put("a", b"1")
    assert time.perf_counter() - started >= 0.3


@pytest.mark.proof
def test_it_measures_and_writes_what_it_found(
    release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [text for text, _ in zip(demo_messages.texts(seed=6), range(5_000), strict=False)]
    monkeypatch.setattr(corpus, "load", lambda folder: Corpus(texts, "few messages"))
    monkeypatch.setenv("TANDEM_RELEASES", release.files.root)
    out = tmp_path / "scale.json"
    assert bench_scale.main(["--out", str(out), "--rows", "40000", "--only", "night,resume"]) == 0
    document = json.loads(out.read_text())
    held = {figure["name"]: figure["holds"] for figure in document["figures"]}
    # Time is that of a machine with other work.
    assert held.keys() == {"driver_rss_gb", "plumbing_us_per_row", "files_per_10m", "growth", "resume_share"}
    assert held["driver_rss_gb"]
    assert held["files_per_10m"]
    day = document["conditions"]["whole_day"]
    assert (day["rows"], day["files"], day["shards"] > 8) == (40_000, 1, True)
    assert set(document["conditions"]["cpu_us_per_row"]) == {"driver_python", "driver_jvm", "workers", "executor_jvm"}
    assert document["conditions"]["rows_adopted"] <= document["conditions"]["rows_run_when_killed"]
