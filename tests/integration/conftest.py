"""Whole nights and stacks have the tiny release; `make demo` has the default one."""

from pathlib import Path

import pytest

from shared_model.releases.store import Release


@pytest.fixture(scope="session")
def releases_dir(tiny_releases_dir: Path) -> Path:
    return tiny_releases_dir


@pytest.fixture(scope="session")
def release(tiny_release: Release) -> Release:
    return tiny_release
