"""Which redis-server is started, and what is known against it."""

import logging
import re
from pathlib import Path

import pytest

from shared_model.errors import StoreUnavailable
from shared_model.redis_store import server, server_version
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings


@pytest.mark.parametrize("version", [(6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2), (8, 4, 0), (9, 0, 0)])
def test_nothing_is_known_against_fixed_versions(version: server_version.Version) -> None:
    assert server_version.advice(version) == ""


@pytest.mark.parametrize("version", [(6, 2, 14), (6, 2, 19), (7, 0, 14), (7, 2, 10), (7, 4, 5), (8, 2, 1), (0, 0, 0)])
def test_former_versions_lack_fixes(version: server_version.Version) -> None:
    assert server_version.advice(version).startswith("it lacks fixes of known vulnerabilities; install")


def test_debians_version_says_what_to_look_at() -> None:
    assert "needs package version 5:7.0.15-1~deb12u6 or later" in server_version.advice((7, 0, 15))


@pytest.mark.heavy
@pytest.mark.parametrize(("version", "chosen"), [("7.0.15", True), ("6.0.16", False)])
def test_a_server_on_the_path_is_preferred_from_version_7(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, chosen: bool
) -> None:
    own = says(tmp_path, version)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert (server.find_binary() == str(own)) is chosen


@pytest.mark.heavy
def test_an_older_server_first_on_the_path_hides_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older, newer = says(tmp_path / "environment", "6.2.14"), says(tmp_path / "usr", "7.0.15")
    monkeypatch.setenv("PATH", f"{older.parent}::{newer.parent}")
    assert server.find_binary() == str(newer)


@pytest.mark.heavy
def test_an_older_server_does_not_start_empty_beside_data_of_version_7(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = says(tmp_path / "environment", "6.2.14")
    monkeypatch.setattr(server, "find_binary", lambda: str(older))
    written = tmp_path / "redis" / "appendonlydir"
    written.mkdir(parents=True)
    refusal = f"{older} is older than version 7, which wrote {written}; install "
    with pytest.raises(StoreUnavailable, match=re.escape(refusal)), RedisServer(StateSettings(state=tmp_path)):
        pass
    assert not (tmp_path / "redis" / "appendonly.aof").exists()


def says(folder: Path, version: str) -> Path:
    """A redis-server of this version, as far as it tells."""
    folder.mkdir(exist_ok=True)
    binary = folder / "redis-server"
    binary.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0'\n")
    binary.chmod(0o755)
    return binary


@pytest.mark.heavy
def test_the_start_says_which_server_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), RedisServer(StateSettings(state=tmp_path)) as running:
        running.log_version()
    (line,) = caplog.messages
    assert "redis-server, version " in line
