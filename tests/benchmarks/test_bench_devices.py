"""`make bench-devices` on few texts."""

import json
from pathlib import Path

import pytest

from shared_model import demo_messages
from shared_model.releases.store import Release
from tests.benchmarks import bench_devices, rounds
from tests.benchmarks.bench_devices import GROUPS
from tests.benchmarks.devices.widths import WAYS
from tests.benchmarks.nightly import corpus
from tests.benchmarks.nightly.corpus import Corpus


def test_figures_carry_the_bounds_that_were_promised() -> None:
    promised = {target.name: target.bound for target in rounds.targets(GROUPS, list(GROUPS))}
    assert promised == {
        "packed_fill": ">= 0.95",
        "simulated_busy": ">= 0.97",
        "tp_max_delta": "<= 0.00001",
        "pp_max_delta": "<= 0.0001",
        "rank_death_s": "<= 10",
        "pipeline_rate_over_narrow": ">= 0",
    }


@pytest.mark.proof
def test_it_measures_and_writes_what_it_found(
    release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [text for text, _ in zip(demo_messages.texts(seed=6), range(20_000), strict=False)]
    monkeypatch.setattr(corpus, "load", lambda folder: Corpus(texts, "few messages"))
    monkeypatch.setenv("TANDEM_RELEASES", release.files.root)
    monkeypatch.setattr(bench_devices, "KEPT_GRAPHS", tmp_path)
    # The other groups take longer; their promises are tested in tests/shared_model/engines.
    options = ["--only", "fill,busy,widths", "--models", "tiny", "--seconds", "0.05"]
    assert bench_devices.main(["--out", str(tmp_path / "devices.json"), *options]) == 0
    document = json.loads((tmp_path / "devices.json").read_text())
    assert {figure["name"]: figure["holds"] for figure in document["figures"]} == {
        "packed_fill": True,
        "simulated_busy": True,
        "pipeline_rate_over_narrow": True,
    }
    assert document["conditions"]["packed_fill"].keys() == {"32768", "131072"}
    measured = document["conditions"]["widths"]
    assert {name: list(ways) for name, ways in measured.items()} == {"tiny": list(WAYS)}
    assert all(figure > 0 for ways in measured.values() for speed in ways.values() for figure in speed.values())


@pytest.mark.heavy
def test_without_a_release_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEM_RELEASES", str(tmp_path))
    assert bench_devices.main(["--out", str(tmp_path / "devices.json")]) == 2
    assert "run `make release`" in capsys.readouterr().err
