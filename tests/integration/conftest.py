"""A tiny release for whole nights and stacks: each process needs seconds to open the default one, which `make demo`
uses."""

from pathlib import Path

import pytest

from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from tests.realtime_service.rollout import tiny_releases


@pytest.fixture(scope="session")
def releases_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny-releases")


@pytest.fixture(scope="session")
def release(releases_dir: Path) -> Release:
    store = Store(releases_dir)
    sealed = tiny_releases.seal_counting(store, "tiny")
    pointer.promote(store, None, sealed.id)
    return sealed
