"""An executor proves what no gate has seen before it scores with it, and scores nothing with what was refused."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from batch_job.scoring import models
from batch_job.scoring.models import open_model
from batch_job.scoring.options import ScoringOptions
from shared_model.building import checkpoint
from shared_model.errors import ReleaseError
from shared_model.evaluation import report
from shared_model.evaluation.verdict import ReleaseReport
from shared_model.releases.store import Release
from shared_model.types import Device
from tests.shared_model import tiny_builds, tiny_models

pytestmark = pytest.mark.heavy

Built = tuple[Release, ReleaseReport]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Built:
    source = tiny_builds.surer(checkpoint.load(tiny_models.make(tmp_path_factory.mktemp("bert"), "bert")))
    return tiny_builds.built_once(tmp_path_factory, source, "tiny")


@pytest.fixture(autouse=True)
def own_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Models that this module opens are not the next module's; random weights agree less well in BF16."""
    monkeypatch.setenv("TANDEM_GATE_MIN_AGREEMENT", "0.75")
    monkeypatch.setenv("TANDEM_GATE_BATCH_MS", "10000")
    monkeypatch.setattr(models, "_opened", {})
    monkeypatch.setattr(models, "_opening", {})
    yield
    for model in models._opened.values():
        model.engine.close()


def options(release: Release) -> ScoringOptions:
    return ScoringOptions(release.files.root, release.id, Device.CPU, batch_rows=64, batch_tokens=2048)


def test_a_release_that_nobody_judged_is_proven_first(tiny: Built, tmp_path: Path) -> None:
    release = tiny_builds.resealed(tiny[0], tmp_path)
    model = open_model(options(release), threads=1)
    assert model.release == release.id
    (note,) = json.loads(release.read_note("proof-bf16-cpu.json") or b"")["variants"]
    assert note["passed"] is True


def test_no_proof_is_made_ahead_of_the_task(tiny: Built, tmp_path: Path) -> None:
    release = tiny_builds.resealed(tiny[0], tmp_path)
    models.open_ahead(options(release), iter(()))
    (ahead,) = models._opening.values()
    assert ahead.result() is None
    assert release.read_note("proof-bf16-cpu.json") is None
    assert open_model(options(release), threads=1).release == release.id


def test_a_refused_release_scores_nothing(tiny: Built, tmp_path: Path) -> None:
    release = tiny_builds.resealed(tiny[0], tmp_path)
    fp32, bf16, int8 = tiny[1].variants
    refused = replace(bf16, failures=("loses its way",))
    report.write(release, replace(tiny[1], release=release.id, variants=(fp32, refused, int8)))
    with pytest.raises(ReleaseError, match="bf16/cpu was refused: loses its way"):
        open_model(options(release), threads=1)
    assert models._opened == {}
