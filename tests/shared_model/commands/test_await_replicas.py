"""`--wait`: a command that moves the pointer ends when all replicas follow it, or says which do not and why."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import redis

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.storage_pb2 import ReplicaProfile, ReplicaState, ServedModel
from shared_model.commands import await_replicas
from shared_model.redis_store import keys
from shared_model.releases.pointer import Pointer
from shared_model.releases.store import Release
from tests.realtime_service.conftest import eventually
from tests.shared_model.commands import Run

OLD, NEW, TRIAL = "old-1", "new-2", "trial-3"


def profile(
    name: str,
    release: str = NEW,
    version: int = 2,
    also: str = "",
    failures: Mapping[str, str] | None = None,
    **more: object,
) -> ReplicaProfile:
    described = ReplicaDescription(id=name, release=release, releases=[release, *filter(None, [also])])
    return ReplicaProfile(replica=described, lanes=["latency"], pointer_version=version, failures=failures, **more)  # type: ignore[arg-type]


def beat(client: "redis.Redis", profile: ReplicaProfile) -> None:
    """Store a replica's heartbeat with a longer lifetime than usual."""
    client.set(keys.replica(profile.replica.id), ReplicaState(profile=profile.SerializeToString()).SerializeToString())
    client.sadd(keys.replicas(), profile.replica.id)


@pytest.mark.parametrize(
    ("wanted", "told", "says"),
    [
        (Pointer(2, NEW), [], "no replica is known that follows the pointer"),
        (Pointer(2, NEW), [profile("a")], "1 of 1 replicas follow"),
        (Pointer(2, NEW), [profile("a"), profile("b", OLD)], "1 of 2 replicas follow; waiting: b"),
        # It serves the right one, but because of an older version: what it will make of this one is not known.
        (Pointer(2, NEW), [profile("a", version=1)], "0 of 1 replicas follow; waiting: a"),
        (Pointer(2, NEW, OLD, TRIAL, 0.1), [profile("a", also=TRIAL)], "1 of 1 replicas follow"),
        (Pointer(2, NEW, OLD, TRIAL, 0.1), [profile("a")], "0 of 1 replicas follow; waiting: a"),
        (
            Pointer(2, NEW),
            [profile("a", OLD, failures={NEW: "its probe was ended by SIGSEGV"}), profile("b")],
            "1 of 2 replicas follow\nreplica a does not serve new-2: its probe was ended by SIGSEGV",
        ),
        # A failure at an older version is tried again.
        (Pointer(2, NEW), [profile("a", OLD, 1, failures={NEW: "crashed"})], "0 of 1 replicas follow; waiting: a"),
        (
            Pointer(2, NEW),
            [profile("a"), profile("b", OLD, 0, pinned=True)],
            "1 of 1 replicas follow; pinned to a release of their own: b",
        ),
    ],
)
def test_how_far_replicas_are(wanted: Pointer, told: list[ReplicaProfile], says: str) -> None:
    assert str(await_replicas.progress(told, wanted)) == says


def test_only_replicas_that_take_requests_are_waited_for(redis_client: "redis.Redis") -> None:
    draining = profile("draining")
    draining.replica.draining = True
    for told in (profile("here"), draining, ReplicaProfile(replica=ReplicaDescription(id="router", release=OLD))):
        beat(redis_client, told)
    redis_client.sadd(keys.replicas(), "gone")
    assert [it.replica.id for it in await_replicas.read(redis_client)] == ["here"]


SIDE = "side-1"


def serving(active: str, version: int = 2, on_demand: bool = False) -> dict[str, ServedModel]:
    return {"side": ServedModel(pointer_version=version, active=active, on_demand=on_demand)}


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ([profile("a", models=serving(SIDE))], "1 of 1 replicas follow"),
        # It has the release, and has not seen that it was promoted.
        ([profile("a", models=serving(SIDE, version=1))], "0 of 1 replicas follow; waiting: a"),
        ([profile("a", models=serving("")), profile("b", models=serving(SIDE))], "1 of 2 replicas follow; waiting: a"),
        # It loads the release when a call asks for it.
        ([profile("a", models=serving("", on_demand=True))], "1 of 1 replicas follow"),
        # It serves each model, and has not heard of this one yet.
        ([profile("a", all_models=True)], "0 of 1 replicas follow; waiting: a"),
        # It serves others, or is of a version that knows one model.
        ([profile("a")], "no replica is known that follows the pointer"),
        # A failure of the default model's release is not this one's.
        ([profile("a", models=serving(SIDE), failures={NEW: "crashed"})], "1 of 1 replicas follow"),
    ],
)
def test_the_replicas_that_follow_the_pointer_of_one_model(told: list[ReplicaProfile], says: str) -> None:
    assert str(await_replicas.progress(told, Pointer(2, SIDE), "side")) == says


def test_a_promotion_waits_until_all_follow(run: Run, redis_client: "redis.Redis", one: Release) -> None:
    beat(redis_client, profile("a", OLD, 0))
    later = threading.Timer(0.5, lambda: beat(redis_client, profile("a", one.id, 1)))
    later.start()
    status, printed, complaint = run("promote", "--default", one.id, "--wait")
    later.join()
    assert (status, printed.splitlines()[1:], complaint) == (0, ["1 of 1 replicas follow"], "")


def test_a_replica_whose_heartbeat_is_late_is_waited_for(run: Run, redis_client: "redis.Redis", one: Release) -> None:
    """It has expired, because its host is busy."""

    def looks() -> int:
        return int(redis_client.info("commandstats").get("cmdstat_mget", {"calls": 0})["calls"])

    def after_a_look(do: Callable[[], object], before: int) -> None:
        eventually(lambda: looks() > before)
        do()

    def be_late() -> None:
        after_a_look(lambda: redis_client.delete(keys.replica("a")), began)
        after_a_look(lambda: beat(redis_client, profile("a", one.id, 1)), looks())

    beat(redis_client, profile("a", OLD, 0))
    began, late = looks(), threading.Thread(target=be_late)
    late.start()
    status, printed, complaint = run("promote", "--default", one.id, "--wait")
    late.join()
    assert (status, printed.splitlines()[1:], complaint) == (0, ["1 of 1 replicas follow"], "")


def test_without_waiting_it_says_how_many_are_known(run: Run, redis_client: "redis.Redis", one: Release) -> None:
    beat(redis_client, profile("a", OLD, 0))
    status, printed, _ = run("promote", "--default", one.id)
    assert status == 0
    assert printed.splitlines()[1:] == ["replicas known: 1; they follow within about a minute, --wait waits for that"]


def test_when_the_time_is_over_it_names_those_it_waited_for(
    run: Run, redis_client: "redis.Redis", one: Release, two: Release
) -> None:
    run("promote", "--default", one.id)
    beat(redis_client, profile("a", one.id, 1))
    for command in (("canary", "--default", two.id, "--weight", "0.1"), ("rollback",)):
        status, printed, complaint = run(*command, "--wait", "0.3")
        assert (status, complaint) == (1, "")
        assert printed.splitlines()[1:] == ["0 of 1 replicas follow; waiting: a"]


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "soon"])
def test_a_time_that_is_none_is_refused(
    run: Run, one: Release, seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        run("promote", "--default", one.id, f"--wait={seconds}")
    assert refused.value.code == 2
    assert f"argument --wait: expected seconds, 0 or more, not {seconds!r}" in capsys.readouterr().err


def test_without_redis_nobody_knows(run: Run, one: Release, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TANDEM_REDIS_URL", f"unix://{tmp_path / 'none.sock'}")
    status, printed, complaint = run("promote", "--default", one.id, "--wait")
    assert (status, printed) == (3, "")
    assert one.id in complaint
