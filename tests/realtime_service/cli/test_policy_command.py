"""`policy show`, `set` and `reset` on a real Redis, and their effect on replicas at the next heartbeat."""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import redis
import redis.asyncio

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.storage_pb2 import RoutingPolicy
from realtime_service.__main__ import main
from realtime_service.cli import policy_command
from realtime_service.cluster import heartbeat
from realtime_service.cluster.membership import Membership
from realtime_service.process import redis_connections
from realtime_service.routing import overrides
from realtime_service.routing.snapshot import Snapshot
from realtime_service.settings import ServiceSettings
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings
from shared_model.types import ServingPath

Run = Callable[..., tuple[int, str, str]]

DEFAULTS = """\
version 0
latency_below_ms             100  default
throughput_above_ms         1000  default
quota                          0  default
latency.p95_ms                50  default
dynamic.p95_ms                 0  default
throughput.p95_ms            500  default
latency.load_target          0.6  default
dynamic.load_target            0  default
throughput.load_target      0.95  default
"""


@pytest.fixture(scope="module")
def redis_server(own_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server of this module's own, because a policy acts on every replica of a Redis."""
    with RedisServer(StateSettings(state=tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture
def run(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("TANDEM_STATE", str(tmp_path))
    monkeypatch.setenv("TANDEM_REDIS_URL", redis_url)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["policy", *arguments])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
async def replicas(redis_url: str) -> AsyncIterator[list[Membership]]:
    client = redis_connections.default_client(redis_url)
    yield [replica(client, name) for name in ("one", "two", "three")]
    await client.aclose()


def replica(client: "redis.asyncio.Redis", name: str) -> Membership:
    state = heartbeat.state(ReplicaDescription(id=name))
    return Membership(client, Snapshot(name), lambda opened: state, overrides.of(ServiceSettings()))


def rows(printed: str) -> dict[str, tuple[str, str]]:
    return {name: (value, who) for name, value, who in (line.split() for line in printed.splitlines()[1:])}


def test_numbers_of_operators_are_marked(run: Run) -> None:
    assert run("show") == (0, DEFAULTS, "")
    numbers = ["latency_below_ms=80", "latency.p95_ms=40", "dynamic.load_target=0.5", "quota=200"]
    status, printed, _ = run("set", *numbers, "quota.some-caller=20")
    assert status == 0
    assert printed.startswith("version 1\n")
    assert {name: value for name, (value, who) in rows(printed).items() if who == "operators"} == {
        "latency_below_ms": "80",
        "latency.p95_ms": "40",
        "dynamic.load_target": "0.5",
        "quota": "200",
        "quota.some-caller": "20",
    }
    assert run("show") == (0, printed, "")
    status, printed, _ = run("reset", "quota.some-caller", "latency_below_ms")
    assert printed.startswith("version 2\n")
    assert rows(printed)["latency_below_ms"] == ("100", "default")
    assert "quota.some-caller" not in rows(printed)
    assert rows(printed)["quota"] == ("200", "operators")
    assert run("reset", "--all") == (0, DEFAULTS.replace("version 0", "version 3"), "")


def test_a_caller_may_have_any_name(run: Run) -> None:
    name = "ipv6:[::1] = a.b"
    assert re.search(rf"^quota\.{re.escape(name)} +5  operators$", run("set", f"quota.{name}=5")[1], re.M)
    assert name not in run("reset", f"quota.{name}")[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["set", "speed=1"], "speed: is not a number of the policy; it has latency_below_ms, "),
        (["set", "quota"], "quota: expected NAME=NUMBER"),
        (["set", "quota=many"], "quota=many: expected NAME=NUMBER"),
        (["set", "quota=nan"], "quota=nan: expected NAME=NUMBER"),
        (["set", "=5"], "=5: expected NAME=NUMBER"),
        (["set", "latency.load_target=1.5"], "latency.load_target: is 1.5: expected a share from 0 to 1"),
        (["set", "latency.load_target=0.5", "quota=-1"], "quota: is -1: expected 0 or more"),
        (["set", "latency_below_ms=2000"], "latency_below_ms: is 2000: expected at most throughput_above_ms, which is"),
        (["reset", "quotas"], "quotas: is not a number of the policy"),
    ],
)
def test_a_wrong_argument_is_one_line_and_changes_nothing(run: Run, arguments: list[str], says: str) -> None:
    run("set", "quota=7")
    status, printed, complaint = run(*arguments)
    assert (status, printed, complaint.count("\n")) == (2, "", 1)
    assert complaint.startswith(f"realtime_service policy: {says}")
    assert run("show")[1].startswith("version 1\n")


def test_a_policy_is_checked_against_the_settings_of_the_service(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tandem.toml"
    file.write_text("throughput_above_ms = 3000\nquota = 9\n")
    # Set here so that monkeypatch unsets it: the file is copied to the environment.
    for name in ("TANDEM_THROUGHPUT_ABOVE_MS", "TANDEM_QUOTA"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("TANDEM_CONFIG", str(file))
    status, printed, _ = run("set", "latency_below_ms=2000")
    assert status == 0
    assert rows(printed)["quota"] == ("9", "default")


@pytest.mark.parametrize("damage", [b"\xff\xff", RoutingPolicy(version=1, quota=-1.0).SerializeToString()])
def test_a_damaged_policy_is_named_and_can_be_replaced(run: Run, redis_client: "redis.Redis", damage: bytes) -> None:
    redis_client.set(keys.routing_policy(), damage)
    for command in (["show"], ["set", "quota=5"], ["reset", "quota"]):
        status, printed, complaint = run(*command)
        assert (status, printed, complaint.count("\n")) == (2, "", 1)
    assert run("reset", "--all")[:2] == (0, DEFAULTS.replace("version 0", "version 1"))


def test_a_key_of_another_type_is_replaced(run: Run, redis_client: "redis.Redis") -> None:
    redis_client.rpush(keys.routing_policy(), "a list")
    assert run("show") == (0, DEFAULTS, "")
    assert run("set", "quota=5")[1].startswith("version 1\n")


def test_without_redis_it_says_so_in_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_REDIS_URL", "redis://127.0.0.1:1")
    for command in (["show"], ["set", "quota=5"], ["reset", "--all"]):
        status, printed, complaint = run(*command)
        assert (status, printed, complaint.count("\n")) == (2, "", 1)
        assert complaint.startswith("realtime_service policy: Redis did not answer: ")


def test_of_many_changes_at_once_none_is_lost(run: Run) -> None:
    together = Barrier(8)

    def change(operator: int) -> None:
        together.wait()
        for number in range(5):
            policy_command.set_([f"quota.{operator}-{number}={number}"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(change, range(8)))
    printed = run("show")[1]
    assert printed.startswith("version 40\n")
    assert sum(name.startswith("quota.") for name in rows(printed)) == 40


async def test_every_replica_follows_at_its_next_heartbeat(run: Run, replicas: list[Membership]) -> None:
    run("set", "latency_below_ms=80", "latency.p95_ms=40")
    for replica in replicas:
        await replica.run_once()
        policy = replica.snapshot.policy
        assert (policy.version, policy.latency_below, policy.targets[ServingPath.LATENCY]) == (1, 0.08, 0.04)
    run("reset", "--all")
    for replica in replicas:
        await replica.run_once()
        assert replica.snapshot.policy.latency_below == 0.1


@pytest.mark.parametrize(
    "wrong",
    [b"\xff\xff", b"", RoutingPolicy(version=2, quota=-1.0).SerializeToString()],
    ids=["damaged", "empty", "wrong"],
)
async def test_a_wrong_policy_is_refused_and_the_old_one_stays(
    run: Run, replicas: list[Membership], redis_client: "redis.Redis", wrong: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    run("set", "latency_below_ms=80")
    for replica in replicas:
        await replica.run_once()
    redis_client.set(keys.routing_policy(), wrong)
    for replica in replicas:
        await replica.run_once()
        await replica.run_once()
        assert replica.snapshot.policy.latency_below == 0.08
    assert caplog.text.count("the routing policy in Redis is refused") == len(replicas)
