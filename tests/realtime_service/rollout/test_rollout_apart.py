"""A release that hangs, one without attestation, no Redis, several replicas, a pinned one, a bad start."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from realtime_service.client import Client
from shared_model.errors import StoreUnavailable
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from tests.realtime_service.conftest import eventually
from tests.realtime_service.process.test_lifecycle import serve_and_fail
from tests.realtime_service.rollout import tiny_releases
from tests.realtime_service.rollout.stage import Callers, Stage, staged, states, wait_for_failure, wait_until_active

pytestmark = pytest.mark.heavy


def test_a_release_that_hangs_fails_its_check(tmp_path: Path) -> None:
    with staged(tmp_path, TANDEM_PROBE_SECONDS="4") as stage, Client(stage.replica.address) as client:
        numbers = tiny_releases.table()
        endless = tiny_releases.embedding(numbers, tiny_releases.endless)
        hang = tiny_releases.seal_graph(stage.store, "hang", endless)
        with Callers(stage.replica.address) as callers:
            stage.promote(hang)
            eventually(lambda: hang.id in states(client))
            assert wait_for_failure(client, hang) == "its probe was not done after 4 s"
            # No process of the check is left.
            assert not [line for line in processes() if hang.id in line]
        assert callers.failed == []
        assert hang.id not in callers.releases


def processes() -> list[str]:
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended meanwhile
            continue
    return lines


def test_replicas_that_have_warmed_a_release_switch_together_and_a_pinned_one_stays(stage: Stage) -> None:
    first = pointer.read(stage.store, None).active
    other, pinned = stage.another_replica("other"), stage.another_replica("pinned", TANDEM_RELEASE=first)
    clients = [Client(it.address) for it in (stage.replica, other, pinned)]
    try:
        release = stage.seal("together", 2)
        stage.start_canary(release, 0.2)
        eventually(lambda: warmed(clients[0], release) == 2)
        stage.promote(release)
        began = time.monotonic()
        eventually(lambda: all(it.describe().release == release.id for it in clients[:2]), seconds=5)
        assert time.monotonic() - began <= 5
        assert {it.score("card").release for it in clients[:2]} == {release.id}
        # The pinned replica does not even load the new release.
        assert set(states(clients[2])) == {first}
        assert clients[2].score("card").release == first
    finally:
        assert (other.stop(), pinned.stop()) == (0, 0)
        for it in clients:
            it.close()


def warmed(client: Client, release: Release) -> int:
    """Replicas that have a release ready, from their heartbeats."""
    return sum(release.id in replica.releases for replica in client.describe().replicas)


def test_without_redis_the_file_twin_is_followed_and_afterwards_still_counts(tmp_path: Path) -> None:
    with staged(tmp_path) as stage, Client(stage.replica.address) as client:
        release = stage.seal("by-file", 3)
        with Callers(stage.replica.address) as callers:
            assert stage.redis.pid
            os.kill(stage.redis.pid, signal.SIGKILL)
            eventually(lambda: not client.describe().redis_available)
            with pytest.raises(StoreUnavailable, match="Redis was not told"):
                stage.promote(release)
            wait_until_active(client, release)
            # Redis comes back with its former pointer, which is older.
            with RedisServer(StateSettings(state=stage.folder)) as revived:
                assert revived.url == stage.redis.url
                eventually(lambda: client.describe().redis_available)
                answered = len(callers.answers)
                eventually(lambda: len(callers.answers) > answered + 100)
                assert client.score("card").release == release.id
        assert callers.failed == []


def with_reference(store: Store, name: str, favourite: int) -> Release:
    """A release without attestation: its variants prefer one label, its fp32 reference the label of number 2."""
    graphs = {
        folder: tiny_releases.embedding(tiny_releases.table(favourite=number))
        for folder, number in (("cpu", favourite), ("openvino", 2))
    }
    return tiny_releases.seal_unproven(store, name, graphs)


def test_a_variant_without_attestation_is_proven_before_it_serves(stage: Stage, client: Client) -> None:
    bad, good = with_reference(stage.store, "unproven-bad", 3), with_reference(stage.store, "unproven-good", 2)
    stage.promote(bad)
    assert "int8/cpu was refused: " in wait_for_failure(client, bad)
    stage.promote(good)
    wait_until_active(client, good)
    assert good.read_note("proof-int8-cpu.json")


def test_a_replica_does_not_start_on_a_release_that_is_unfit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # These releases have no report, which an operator would have signed.
    monkeypatch.setenv("TANDEM_UNSIGNED", "accept")
    store = Store(tmp_path / "releases")
    numbers = tiny_releases.table() * np.nan
    release = tiny_releases.seal_graph(store, "nan", tiny_releases.embedding(numbers))
    line = serve_and_fail(tmp_path, tmp_path / "releases", TANDEM_RELEASE=release.id)
    assert line == f"realtime_service serve: release {release.id}: some outputs are not finite numbers"
    unreadable = tiny_releases.seal_files(store, "unreadable", b"<net", b"")
    line = serve_and_fail(tmp_path, tmp_path / "releases", TANDEM_RELEASE=unreadable.id)
    assert f"serve: release {unreadable.id}: its int8 variant cannot be opened: " in line
    unproven = with_reference(store, "unproven", 5)
    line = serve_and_fail(tmp_path, tmp_path / "releases", TANDEM_RELEASE=unproven.id)
    assert f"serve: release {unproven.id}: int8/cpu was refused: " in line
