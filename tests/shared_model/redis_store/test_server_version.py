"""Which redis-server is started, and what is known against it."""

import logging
from pathlib import Path

import pytest

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
    own = tmp_path / "redis-server"
    own.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0'\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert (server.find_binary() == str(own)) is chosen


@pytest.mark.heavy
def test_the_start_says_which_server_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), RedisServer(StateSettings(state=tmp_path)) as running:
        running.log_version()
    (line,) = caplog.messages
    assert "redis-server, version " in line
