"""`python -m shared_model` in a state folder of the test's own, and two releases that passed their gates."""

from pathlib import Path

import pytest

from shared_model.__main__ import main
from shared_model.releases.store import Release, Store
from tests.shared_model.commands import Run
from tests.shared_model.small_release import passed

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path))
    monkeypatch.delenv("TANDEM_RELEASES", raising=False)
    return tmp_path


@pytest.fixture
def run(redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> Run:
    monkeypatch.setenv("TANDEM_REDIS_URL", redis_url)

    def run(*arguments: object) -> tuple[int, str, str]:
        status = main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def store(place: Path) -> Store:
    return Store(place / "releases")


@pytest.fixture
def one(store: Store) -> Release:
    return passed(store, "one")


@pytest.fixture
def two(one: Release, store: Store) -> Release:
    return passed(store, "two")
