"""`watch` compares a canary with the active release by what replicas publish, and moves no pointer; what goes on with a
canary touches no other."""

import json
import threading
import time
from pathlib import Path

import pytest
import redis

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.storage_pb2 import Figures, LaneFigures, ReleaseFigures, ReplicaProfile, ReplicaState
from shared_model.commands import watch
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.pointer import Pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from tests.realtime_service.conftest import eventually
from tests.shared_model.commands import Run
from tests.shared_model.small_release import passed

Factory = pytest.TempPathFactory


def beat(
    client: "redis.Redis", replica: str, counts: dict[str, tuple[int, int]], failures: dict[str, str] | None = None
) -> None:
    """Store a heartbeat without an end. `counts`: by release, calls that were answered in time and that failed."""
    profile = ReplicaProfile(
        replica=ReplicaDescription(id=replica, release="x"), lanes=["latency"], pointer_version=2, failures=failures
    )
    figures = Figures(
        releases=[
            ReleaseFigures(release=release, failed=failed, lanes=[LaneFigures(path="latency", answered=answered)])
            for release, (answered, failed) in counts.items()
        ]
    )
    state = ReplicaState(profile=profile.SerializeToString(), figures=figures.SerializeToString())
    client.set(keys.replica(replica), state.SerializeToString())
    client.sadd(keys.replicas(), replica)


@pytest.fixture
def trial(run: Run, one: Release, two: Release, redis_client: "redis.Redis") -> str:
    """`two` is tried beside `one`, and both have ended calls before."""
    run("promote", "--default", one.id)
    run("canary", "--default", two.id, "--weight", 0.1)
    beat(redis_client, "a", {one.id: (5_000, 50), two.id: (500, 40)})
    return two.id


def later(client: "redis.Redis", *beats: dict[str, tuple[int, int]]) -> threading.Thread:
    """Replica `a` goes on to these counts, each time once a watch has looked at the ones before."""

    def looks() -> int:
        return int(client.info("commandstats").get("cmdstat_mget", {"calls": 0})["calls"])

    def go_on() -> None:
        for counts in beats:
            before = looks()
            eventually(lambda before=before: looks() > before)
            beat(client, "a", counts)

    thread = threading.Thread(target=go_on)
    thread.start()
    return thread


def test_a_canary_that_keeps_both_service_levels(
    run: Run, trial: str, one: Release, redis_client: "redis.Redis", store: Store
) -> None:
    night = {
        "ds": "2026-01-14",
        "release": one.id,
        "rows": 20_000,
        "rows_per_second": 812.4,
        "finished_at": time.time(),
    }
    redis_client.set(keys.last_run(), json.dumps(night))
    # It loads the canary again meanwhile: what it counted before is not lost.
    going = later(redis_client, {one.id: (7_000, 50), trial: (600, 40)}, {one.id: (7_000, 50), trial: (50, 0)})
    status, printed, complaint = run("watch", "--minutes", "0.05", "--calls", 150)
    going.join()
    assert (status, complaint) == (0, "")
    (line,) = printed.splitlines()
    assert line.startswith("canary: 150 calls, 0.00% failed; latency: 0.00% late")
    assert "active release: 2000 calls" in line
    assert line.endswith(f"last night 2026-01-14: 20,000 rows, 812 rows/s, by {one.id}")
    assert pointer.read(store, redis_client) == Pointer(2, one.id, "", trial, 0.1)


def test_a_worse_canary_ends_the_watch_at_once(
    run: Run, trial: str, one: Release, redis_client: "redis.Redis", store: Store
) -> None:
    going = later(redis_client, {one.id: (7_000, 50), trial: (500, 60)})
    started = time.monotonic()
    status, printed, _ = run("watch", trial, "--minutes", 10)
    going.join()
    assert time.monotonic() - started < 30
    assert (status, printed) == (
        5,
        "100.00% of the canary's calls failed (20 of 20), 0.00% of the active release's (0 of 2000)\n",
    )
    assert pointer.read(store, redis_client).canary == trial


def test_a_canary_that_a_replica_cannot_serve_is_worse(run: Run, trial: str, redis_client: "redis.Redis") -> None:
    beat(redis_client, "a", {}, failures={trial: "its probe was ended by SIGSEGV"})
    assert run("watch", "--minutes", 10)[:2] == (
        5,
        f"replica a does not serve {trial}: its probe was ended by SIGSEGV\n",
    )


def test_too_few_calls_decide_nothing(run: Run, trial: str) -> None:
    status, printed, _ = run("watch", "--minutes", "0.01")
    said = "the canary ended 0 calls, fewer than 100: nothing can be said of it"
    assert (status, printed) == (4, f"{said}; the canary {trial} stays as it is\n")


@pytest.mark.parametrize(
    ("release", "hours", "is_kept"),
    [("active", 99, True), ("canary", 99, True), ("former", 20, True), ("former", 30, False), ("stranger", 1, False)],
)
def test_nights_of_another_release_are_a_problem(release: str, hours: float, is_kept: bool) -> None:
    """As the alert NightlyReleaseDiffers: after a promotion the last night is of the release before."""
    night = watch.Night("2026-01-14", release, 20_000, 812.4, finished_at=3_600.0)
    problem = night.problem(Pointer(2, "active", "former", "canary", 0.1), 3_600 * (1 + hours))
    said = f"the last night, 2026-01-14, was scored with {release}, which does not answer: mend the nights first"
    assert problem == ("" if is_kept else said)


def test_a_canary_is_not_promoted_where_the_nights_use_another_release(
    run: Run, trial: str, redis_client: "redis.Redis", one: Release
) -> None:
    night = {"ds": "2026-01-14", "release": "other", "rows": 1, "rows_per_second": 1.0, "finished_at": time.time()}
    redis_client.set(keys.last_run(), json.dumps(night))
    going = later(redis_client, {one.id: (7_000, 50), trial: (900, 40)})
    status, printed, _ = run("watch", "--minutes", "0.05")
    going.join()
    assert (status, "the last night, 2026-01-14, was scored with other" in printed) == (4, True), printed


def test_a_pointer_that_somebody_moves_ends_the_watch_without_a_verdict(
    run: Run, trial: str, one: Release, redis_client: "redis.Redis", store: Store
) -> None:
    moving = threading.Timer(0.8, lambda: pointer.rollback(store, redis_client))
    moving.start()
    status, printed, _ = run("watch", "--minutes", 10)
    moving.join()
    assert status == 4
    assert printed.startswith(f"the pointer was moved meanwhile, {one.id} is active; nothing was decided")


def test_what_is_no_canary_is_not_watched(run: Run, trial: str, one: Release) -> None:
    said = f"release {one.id} is no canary: it is active; nothing was changed"
    assert run("watch", one.id, "--minutes", "0.01") == (2, "", f"shared_model watch: {said}\n")
    run("rollback")
    assert run("watch", "--minutes", "0.01") == (2, "", "shared_model watch: @canary: there is no canary release\n")


def test_a_rollback_of_a_canary_touches_nothing_else(
    run: Run, trial: str, one: Release, store: Store, redis_client: "redis.Redis", place: Path
) -> None:
    _, printed, _ = run("rollback", "--canary", trial)
    assert printed.startswith(f"release {one.id} is active (version 3); the canary {trial} was dropped\n")
    # Again, as after a try that reached one copy of the pointer alone: the release before it does not return.
    status, printed, _ = run("rollback", "--canary", trial)
    assert (status, printed.splitlines()[0]) == (0, f"release {one.id} is active (version 4)")
    assert pointer.read(store, None) == pointer.read(store, redis_client) == Pointer(4, one.id)
    run("promote", "--default", trial)
    status, _, complaint = run("rollback", "--canary", trial)
    assert (status, complaint) == (
        2,
        f"shared_model rollback: release {trial} is active: it was promoted; nothing was changed\n",
    )


def test_only_a_canary_is_promoted_where_that_is_asked_for(run: Run, trial: str, store: Store) -> None:
    # Without --default: the model is the one whose canary it is. And again, as after a try that was lost.
    for _ in range(2):
        assert run("promote", "--canary", trial)[0] == 0
    assert pointer.read(store, None).active == trial
    other = passed(store, "other").id
    said = f"shared_model promote: release {other} is no canary: it is named by no pointer; nothing was changed\n"
    assert run("promote", "--canary", other) == (2, "", said)


def test_a_watch_that_loses_redis_says_so_and_leaves_the_canary(
    trial: str, one: Release, place: Path, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Factory
) -> None:
    """The pointer's file names the canary; its Redis goes while the watch runs."""
    with RedisServer(StateSettings(state=tmp_path_factory.mktemp("redis"))) as server:
        monkeypatch.setenv("TANDEM_REDIS_URL", server.url)
        with redis.Redis.from_url(server.url) as client:
            going = threading.Timer(1.0, lambda: client.shutdown(nosave=True))
            going.start()
            status, printed, complaint = run("watch", "--minutes", 5)
            going.join()
    assert (status, printed) == (3, "")
    assert complaint.startswith("shared_model watch: Redis did not say what replicas serve: ")
    assert complaint.endswith(f"; the canary {trial} stays as it is\n")
