"""promote, canary, rollback: only what passed its gate takes traffic, and one line says what answers now."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.storage_pb2 import ReplicaProfile, ReplicaState
from shared_model.evaluation import report
from shared_model.redis_store import keys
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from tests.shared_model import small_release
from tests.shared_model.commands import Run, listed

UNPROVEN = "unproven until a replica has the device: fp16/cuda"


def test_promote_canary_and_rollback_say_what_answers_now(run: Run, one: Release, two: Release, store: Store) -> None:
    assert run("promote", "--default", one.id) == (0, f"release {one.id} is active (version 1); {UNPROVEN}\n", "")
    assert run("promote", "--default", one.id) == (
        0,
        f"release {one.id} is active (version 2); it was before; {UNPROVEN}\n",
        "",
    )
    assert run("promote", "--default", two.id) == (
        0,
        f"release {two.id} is active (version 3); it replaced {one.id}; {UNPROVEN}\n",
        "",
    )
    assert run("canary", "--default", one.id, "--weight", 0.05) == (
        0,
        f"release {one.id} answers 5.00% of the callers (version 4), {two.id} the others; {UNPROVEN}\n",
        "",
    )
    assert run("rollback") == (0, f"release {two.id} is active (version 5); the canary {one.id} was dropped\n", "")
    assert run("rollback") == (0, f"release {one.id} is active (version 6); it replaced {two.id}\n", "")
    assert run("rollback") == (
        2,
        "",
        "shared_model rollback: there is nothing to roll back to; promote the release you want\n",
    )
    assert pointer.read(store, None).active == one.id


@pytest.mark.parametrize("command", [("promote",), ("canary", "--weight", "0.1")])
def test_only_what_passed_its_gate_takes_traffic(run: Run, one: Release, store: Store, command: tuple[str]) -> None:
    run("promote", "--default", one.id)
    two = small_release.seal(store, name="two")
    assert run(*command, two.id) == (
        1,
        f"release {two.id} was not judged; run `python -m shared_model gate --release {two.id}`\n",
        "",
    )
    small_release.judge(two, failures=("names the reference's label for 98.00%", "is slow"))
    status, printed, _ = run(*command, two.id)
    why = f"release {two.id} did not pass its gate: int8/cpu names the reference's label for 98.00%; int8/cpu is slow; "
    assert (status, printed) == (1, f"{why}see {two.place}/report.md; {UNPROVEN}\n")
    assert pointer.read(store, None) == pointer.Pointer(1, one.id)


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        (lambda one: one.read_note(report.JSON), r"report\.json is of 'one-[0-9a-f]{12}'; judge it again"),
        (lambda one: b'{"passed": true}', r"report\.json is damaged; judge it again"),
        (lambda one: b"", r"report\.json is damaged; judge it again"),
    ],
)
def test_a_report_counts_for_its_own_release(
    run: Run, one: Release, store: Store, contents: Callable[[Release], bytes], says: str
) -> None:
    two = small_release.seal(store, name="two")
    two.write_note(report.JSON, contents(one))
    status, _, complaint = run("promote", "--default", two.id)
    assert status == 2
    assert re.fullmatch(f"shared_model promote: release {two.id}: {says}\n", complaint)


@pytest.mark.parametrize(
    ("lanes", "unfit"),
    [
        ({"throughput": "bf16/cpu"}, ""),
        ({"latency": "fp16/cuda"}, ""),  # left to the replica: the gate's machine has no such device
        ({"latency": "int8/cpu", "throughput": "bf16/cpu"}, "int8/cpu names another label"),
        ({"latency": "int8/cuda"}, "it has no int8/cuda variant"),
    ],
)
def test_a_variant_that_no_lane_runs_refuses_nothing(
    run: Run, one: Release, store: Store, redis_client: "redis.Redis", lanes: dict[str, str], unfit: str
) -> None:
    two = small_release.seal(store, name="two")
    small_release.judge(two, failures=("names another label",))
    replica = ReplicaProfile(replica=ReplicaDescription(id="a"), lanes=lanes, variants=lanes)
    redis_client.set(keys.replica("a"), ReplicaState(profile=replica.SerializeToString()).SerializeToString())
    redis_client.sadd(keys.replicas(), "a")
    status, printed, _ = run("promote", "--default", two.id)
    if unfit:
        why = f"release {two.id} did not pass its gate: {unfit}; see {two.place}/report.md; {UNPROVEN}\n"
        assert (status, printed) == (1, why)
    else:
        assert (status, pointer.read(store, None).active) == (0, two.id)


@pytest.mark.parametrize("command", [("promote",), ("canary", "--weight", "0.1")])
def test_every_file_is_verified_first(run: Run, one: Release, two: Release, command: tuple[str]) -> None:
    run("promote", "--default", one.id)
    (Path(two.place) / "weights.safetensors").write_bytes(b"other")
    says = f"release {two.id}: weights.safetensors does not match its sha256; copy the release again\n"
    assert run(*command, two.id) == (2, "", f"shared_model {command[0]}: {says}")


def test_a_rollback_to_a_damaged_release_is_refused(run: Run, one: Release, two: Release, store: Store) -> None:
    run("promote", "--default", one.id)
    run("promote", "--default", two.id)
    (Path(one.place) / "config.json").unlink()
    status, _, complaint = run("rollback")
    assert status == 2
    assert complaint.startswith(f"shared_model rollback: release {one.id}: config.json cannot be read")
    assert pointer.read(store, None).active == two.id


def test_a_rollback_needs_no_report(run: Run, one: Release, two: Release) -> None:
    run("promote", "--default", one.id)
    run("promote", "--default", two.id)
    (Path(one.place) / report.JSON).unlink()
    assert run("rollback")[:2] == (0, f"release {one.id} is active (version 3); it replaced {two.id}\n")


@pytest.mark.parametrize(("command", "version"), [("promote", 3), ("canary", 3), ("rollback", 3)])
def test_without_redis_the_file_moves_and_the_status_is_3(
    run: Run, one: Release, two: Release, store: Store, monkeypatch: pytest.MonkeyPatch, command: str, version: int
) -> None:
    run("promote", "--default", two.id)
    run("promote", "--default", one.id)
    monkeypatch.setenv("TANDEM_REDIS_URL", "redis://127.0.0.1:1")
    arguments = {"promote": [one.id], "canary": [two.id, "--default", "--weight", "0.5"], "rollback": []}[command]
    status, printed, complaint = run(command, *arguments)
    assert (status, printed) == (3, "")
    assert re.fullmatch(rf"shared_model {command}: .*ACTIVE\.json names .*, but Redis was not told: .*\n", complaint)
    assert pointer.read(store, None).version == version


def test_where_no_redis_can_be_started_the_file_moves_too(
    run: Run, one: Release, place: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that our own server cannot work in."""
    monkeypatch.delenv("TANDEM_REDIS_URL")
    small_release.sign_verdict(one, place)
    (place / "redis" / "appendonly.aof").mkdir(parents=True)  # for a Redis before version 7
    (place / "redis" / "appendonlydir").touch()
    status, _, complaint = run("promote", "--default", one.id)
    assert status == 3
    assert re.fullmatch(
        r"shared_model promote: .*ACTIVE\.json names one-.*, but redis-server did not start; .*\n", complaint
    )
    assert pointer.read(store, None).active == one.id
    assert run("verify")[0] == 0


def test_an_embedded_redis_is_told(run: Run, one: Release, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TANDEM_REDIS_URL")
    small_release.sign_verdict(one, place)
    assert run("promote", "--default", one.id)[0] == 0
    (place / "releases" / pointer.FILE).unlink()
    assert listed(run("list")[1]) == [f"{one.id} passed active"]


@pytest.mark.parametrize("weight", ["0", "1", "-1", "nan", "2"])
def test_a_weight_that_is_no_share_is_refused(run: Run, one: Release, two: Release, weight: str) -> None:
    run("promote", "--default", one.id)
    status, _, complaint = run("canary", "--default", two.id, f"--weight={weight}")
    assert (status, "is no share of the callers" in complaint, complaint.count("\n")) == (2, True, 1)


def test_a_damaged_pointer_is_mended_by_a_promotion(
    run: Run, one: Release, place: Path, redis_client: "redis.Redis"
) -> None:
    (place / "releases" / pointer.FILE).write_text("{")
    redis_client.hset(keys.release_pointer(), "version", "x")
    assert listed(run("list")[1]) == [f"{one.id} passed"]
    assert "damaged; promote a release to write it anew" in run("rm", one.id)[2]
    assert "damaged; promote a release to write it anew" in run("verify")[2]
    assert run("promote", "--default", one.id)[0] == 0
    assert json.loads((place / "releases" / pointer.FILE).read_text())["active"] == one.id
