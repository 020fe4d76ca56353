"""`watch` reads what a replica counts of real calls, of the canary and of the active release."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import redis

from protos.scoring.v1.storage_pb2 import Figures, ReleaseFigures, ReplicaState
from realtime_service.client import CallError, Client
from shared_model.redis_store import keys
from shared_model.releases.store import Release
from shared_model.types import Priority
from tests.realtime_service.conftest import eventually
from tests.realtime_service.rollout.stage import Stage, states

pytestmark = pytest.mark.heavy

CALLS = 30


def published(stage: Stage) -> dict[str, ReleaseFigures]:
    """The figures in the heartbeats of all replicas, by release; one replica is up."""
    with redis.Redis.from_url(stage.redis.url) as client:
        beats = client.mget([keys.replica(name.decode()) for name in client.smembers(keys.replicas())])
    found = [Figures.FromString(ReplicaState.FromString(beat).figures) for beat in beats if beat]
    return {it.release: it for figures in found for it in figures.releases}


def figures_of(stage: Stage, release: Release) -> ReleaseFigures:
    """Waits for them: a busy host may delay a heartbeat past its expiry."""
    found = list[ReleaseFigures]()
    eventually(lambda: found.extend(it for name, it in published(stage).items() if name == release.id) or found)
    return found[0]


@contextlib.contextmanager
def watching(stage: Stage, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    environ = {
        **os.environ,
        "TANDEM_STATE": str(stage.folder),
        "TANDEM_RELEASES": str(stage.store.files.root),
        "REDIS_URL": stage.redis.url,
    }
    command = [sys.executable, "-m", "shared_model", "watch", *arguments]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def trial(stage: Stage, client: Client) -> Iterator[Release]:
    """A canary for half of the callers, which has answered nothing yet."""
    release = stage.seal("trial", 3)
    stage.start_canary(release, 0.5)
    eventually(lambda: release.id in states(client) and release.id in published(stage))
    yield release
    stage.rollback()
    eventually(lambda: not published(stage))


def callers(stage: Stage, canary: Release) -> tuple[str, str]:
    """A caller whom the active release answers, and one whom the canary answers."""
    found: dict[bool, str] = {}
    for name in map(str, range(50)):
        with Client(stage.replica.address, caller_id=name) as client:
            found[client.score("card").release == canary.id] = name
    return found[False], found[True]


def test_a_heartbeat_has_figures_while_a_canary_answers_and_no_longer(stage: Stage, client: Client) -> None:
    assert published(stage) == {}
    release = stage.seal("brief", 2)
    stage.start_canary(release, 0.5)
    eventually(lambda: len(published(stage)) == 2)
    stage.rollback()
    eventually(lambda: published(stage) == {})


def test_real_calls_of_a_canary_are_watched_until_the_verdict(stage: Stage, trial: Release) -> None:
    for_active, for_canary = callers(stage, trial)
    with watching(stage, "--minutes", "0.1", "--calls", str(CALLS)) as watch:
        while watch.poll() is None:
            for caller in (for_active, for_canary):
                with Client(stage.replica.address, caller_id=caller) as client:
                    client.score("card", priority=Priority.REAL_TIME)
        printed, complaint = watch.communicate()
    assert watch.returncode == 0, complaint
    assert printed.startswith("canary: ")
    assert "0.00% failed; latency: " in printed
    assert ". active release: " in printed
    counted = figures_of(stage, trial)
    (lane,) = [it for it in counted.lanes if it.path == "latency"]
    assert (lane.answered >= CALLS, counted.failed, lane.seconds > 0) == (True, 0, True)


def test_calls_that_the_canary_cannot_answer_end_the_watch(stage: Stage, trial: Release) -> None:
    for_active, for_canary = callers(stage, trial)
    with watching(stage, trial.id, "--minutes", "5") as watch:
        while watch.poll() is None:
            with Client(stage.replica.address, caller_id=for_active) as client:
                client.score("card", priority=Priority.REAL_TIME)
            # Nothing of this length is answered in a millisecond, by any release.
            with Client(stage.replica.address, caller_id=for_canary, attempts=1) as client, pytest.raises(CallError):
                client.score(["where is my card " * 200] * 64, timeout_ms=1, priority=Priority.REAL_TIME)
        printed, complaint = watch.communicate()
    assert watch.returncode == 5, complaint
    assert "% of the canary's calls failed (" in printed


def test_who_ends_a_watch_leaves_the_canary(stage: Stage, trial: Release) -> None:
    with redis.Redis.from_url(stage.redis.url) as client:
        client.config_resetstat()
    with watching(stage, "--minutes", "5") as watch:
        eventually(lambda: is_watched(stage), seconds=30)
        watch.terminate()
        _, complaint = watch.communicate(timeout=30)
    assert (watch.returncode, complaint.splitlines()[-1]) == (
        130,
        f"shared_model watch: interrupted; the canary {trial.id} stays as it is",
    )
    assert figures_of(stage, trial)


def is_watched(stage: Stage) -> bool:
    """Whether somebody has read the heartbeats: a replica does that by a script."""
    with redis.Redis.from_url(stage.redis.url) as client:
        return int(client.info("commandstats").get("cmdstat_mget", {}).get("calls", 0)) > 0
