"""Tiny releases in a store of the test's own, which the environment names."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batch_job.scoring import models
from shared_model.heads import HeadSpec
from shared_model.output import OutputKind, OutputSpec
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from tests.realtime_service.rollout import tiny_releases

MOOD = OutputSpec(OutputKind.MULTI_LABEL, ("angry", "glad", "sad"), 3, temperature=0.1, abstain_below=0.52)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TANDEM_RELEASES", str(tmp_path / "releases"))
    return Store(tmp_path / "releases")


@pytest.fixture
def tiny(store: Store) -> Release:
    """The default model, with two heads."""
    release = tiny_releases.seal(store, "tiny", further=(HeadSpec("mood", MOOD),))
    pointer.promote(store, None, release.id)
    return release


@pytest.fixture(autouse=True)
def own_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No model stays open after a test."""
    monkeypatch.setattr(models, "_opened", {})
    yield
    for model in models._opened.values():
        model.engine.close()
