"""The users of Redis in docker-compose.yml: each role does its real work, and nothing of the others."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from batch_job.steps import figures
from batch_job.tables import fence
from protos.scoring.v1.scoring_pb2 import ScoreRequest
from protos.scoring.v1.storage_pb2 import DeferredWork, PublishedScore, RoutingPolicy
from realtime_service.cli import policy_command, top
from realtime_service.cli.top import Reader
from realtime_service.client import Client
from shared_model.deferred import DeadLetters, DeferredQueue
from shared_model.errors import StoreUnavailable
from shared_model.published.epochs import Epoch
from shared_model.published.message_ids import FIND, question
from shared_model.published.publish import publish
from shared_model.redis_store import clients, keys
from shared_model.redis_store.server import find_binary
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.settings import DeferredSettings
from shared_model.trust import audit
from shared_model.trust.keyring import WITHOUT_KEYS
from tests.batch_job.test_run_record import PLANNED
from tests.conftest import REPOSITORY
from tests.realtime_service.conftest import eventually, start_service
from tests.realtime_service.night import Messages
from tests.realtime_service.rollout import tiny_releases
from tests.redis_nodes import free_port

pytestmark = pytest.mark.heavy

START = REPOSITORY / ".deploy" / "redis" / "start.sh"
USERS = ("service", "nightly", "operator", "health", "backup")
PASSWORDS = {f"REDIS_{user.upper()}_PASSWORD": f"secret{user}" for user in USERS}
RELEASE = "small-0123456789ab"


@dataclass(frozen=True)
class Server:
    port: int

    def url(self, user: str) -> str:
        return f"redis://{user}:secret{user}@127.0.0.1:{self.port}/0"

    def client(self, user: str) -> "redis.Redis":
        return clients.connect(self.url(user), 5.0, 5.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("users")
    (folder / "bin").mkdir()
    (folder / "bin" / "redis-server").symlink_to(find_binary())
    environ = {
        **os.environ, **PASSWORDS, "TANDEM_REDIS_USERS": str(folder / "users.acl"),
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    port = free_port()
    process = subprocess.Popen(
        ["/bin/sh", START, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
        env=environ, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        found, deadline = Server(port), time.monotonic() + 20
        while True:
            try:
                with found.client("health") as client:
                    assert client.ping()
                break
            except redis.ConnectionError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        assert (folder / "users.acl").stat().st_mode & 0o777 == 0o600
        yield found
    finally:
        process.terminate()
        process.wait(20)


def board_of(metrics: str) -> str:
    return top.frame(*top.read([metrics], Reader()))


def test_a_service_its_callers_an_operator_and_a_night_do_their_work(server: Server, tmp_path: Path) -> None:
    store = Store(tmp_path / "releases")
    release = tiny_releases.seal(store, "first", 0)
    with server.client("operator") as client:
        pointer.promote(store, client, release.id)
    service = start_service(tmp_path / "state", tmp_path / "releases", REDIS_URL=server.url("service"))
    with Client(service.address) as caller:
        assert caller.score("where is my card").release == release.id
        caller.submit("ticket-1", "where is my card")
        (ended,) = caller.watch(["ticket-1"], seconds=60.0)
        assert ended.answer
        assert caller.describe().replicas
    # The board reads and writes keys of its own.
    assert "Redis: reached" in (shown := board_of(service.metrics))
    assert "not in Redis" not in shown
    with server.client("operator") as client:
        policy_command.move(
            client, WITHOUT_KEYS, "policy set", lambda _: RoutingPolicy(version=1, quota=9.0).SerializeToString()
        )
        assert pointer.promote(store, client, release.id).version == 2
        assert len(list(audit.lines(client, WITHOUT_KEYS))) == 3
    assert service.stop() == 0
    with server.client("nightly") as client:
        assert pointer.read(store, client).active == release.id
        assert fence.Fence.take(client, "2026-01-14", 0).token == 1
        epoch = Epoch(release.id, "bf16", "2026-01-14", 1)
        assert publish(client, epoch, [(b"k" * 16, PublishedScore())], ids=Messages({"a": b"k" * 16})).keys == 1
        client.set(keys.last_run(), "{}")
        client.set(keys.last_verdicts(), "{}")
        figures.tell_state(client, PLANNED)
    with server.client("service") as client:
        assert client.get(keys.last_run()) == client.get(keys.last_verdicts()) == b"{}"
        assert client.llen(keys.recent_runs()) == 1
        hashes = keys.epoch_scores(release.id, epoch.name), keys.epoch_ids(release.id, epoch.name)
        assert client.register_script(FIND)(args=question(*hashes, ["a", "b"], 1)) == [b"", None]


async def test_a_night_drains_and_only_an_operator_replays(server: Server) -> None:
    async def fail_one() -> int:
        async with clients.connect_asyncio(server.url("nightly"), 5.0, 5.0) as client:
            queue = DeferredQueue(client)
            # As `drain --check` does.
            assert (await queue.backlog()).waiting == 0
            await queue.submit("poison", DeferredWork(request=ScoreRequest(texts=["a"])))
            (claimed,) = await queue.claim("night", 1)
            assert await queue.dead_letter(claimed, "it kills", "night", 3)
        for user in ("nightly", "service"):
            async with clients.connect_asyncio(server.url(user), 5.0, 5.0) as client:
                letters = DeadLetters(client, DeferredSettings())
                with pytest.raises(StoreUnavailable, match=r"(?i)no permission|NOPERM|can't access"):
                    await letters.replay([it async for it in letters.all()])
        async with clients.connect_asyncio(server.url("operator"), 5.0, 5.0) as client:
            letters = DeadLetters(client, DeferredSettings())
            return await letters.replay([it async for it in letters.all()])

    assert await asyncio.wait_for(fail_one(), 20) == 1


#: Of every role: commands that it must not run.
NOBODY = (
    ("FLUSHALL",), ("CONFIG", "GET", "*"), ("ACL", "LIST"), ("KEYS", "*"), ("SHUTDOWN",), ("GET", "other"),
    ("SET", "other", "1"), ("PUBLISH", "other", "1"), ("REPLICAOF", "NO", "ONE"),
)  # fmt: skip
FORBIDDEN = {
    "service": (
        ("XADD", keys.audit("release"), "*", "a", "b"), ("XRANGE", keys.audit("routing"), "-", "+"),
        ("INCR", keys.partition_token("2026-01-14")),
    ),
    "nightly": (
        ("SET", keys.routing_policy(), "x"), ("SET", keys.replica("a"), "x"), ("SADD", keys.replicas(), "a"),
        ("SET", keys.replica_word(), "x"),
        ("XADD", keys.audit("release"), "*", "a", "b"),
    ),
    "operator": (("INCR", keys.partition_token("2026-01-14")), ("SET", keys.replica_word(), "x")),
    "backup": (("GET", keys.routing_policy()), ("SET", keys.last_run(), "x"), ("KEYS", "*"), ("EVAL", "return 1", "0")),
    "health": (("GET", keys.routing_policy()), ("SADD", keys.replicas(), "a"), ("EVAL", "return 1", "0")),
}  # fmt: skip
#: Keys that may be read and not written, where Redis can tell the difference.
READ_ONLY = {
    "service": (
        ("SET", keys.routing_policy(), "x"), ("HSET", keys.release_pointer(), "active", "x"),
        ("DEL", keys.release_pointer()), ("HSET", keys.epoch_scores(RELEASE, "e"), "k", "v"),
        ("SET", keys.last_run(), "x"), ("SET", keys.last_verdicts(), "x"),
        ("EVAL", f"return redis.call('SET', '{keys.routing_policy()}', 'x')", "0"),
    ),
    "nightly": (
        ("HSET", keys.release_pointer(), "active", "x"), ("DEL", keys.release_pointer()),
        ("EVAL", f"return redis.call('SADD', '{keys.replicas()}', 'a')", "0"),
    ),
    "operator": (("SET", keys.replica("evil"), "x"), ("SADD", keys.replicas(), "evil"), ("SET", keys.last_run(), "x")),
}  # fmt: skip


@pytest.mark.parametrize("user", USERS)
def test_each_role_is_refused_what_is_not_its_own(server: Server, user: str) -> None:
    with server.client(user) as client:
        read_only = () if _is_redis_6() else READ_ONLY.get(user, ())
        for command in (*NOBODY, *FORBIDDEN[user], *read_only):
            with pytest.raises(redis.ResponseError, match=r"(?i)no permissions|NOPERM|can't access|permission"):
                client.execute_command(*command)


def test_housekeeping_reads_heartbeats_only_where_it_cannot_write_them(server: Server, tmp_path: Path) -> None:
    store = Store(tmp_path / "releases")
    release = tiny_releases.seal(store, "first", 0)
    with server.client("operator") as client:
        pointer.promote(store, client, release.id)
    environ = {
        **os.environ, "TANDEM_STATE": str(tmp_path / "state"), "TANDEM_RELEASES": str(tmp_path / "releases"),
        "TANDEM_REDIS_URL": server.url("nightly"),
    }  # fmt: skip
    command = [sys.executable, "-m", "batch_job", "housekeeping"]
    done = subprocess.run(command, env=environ, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    skipped = "replicas not checked: the Redis user may not read heartbeats; `nightly` may with Redis 7 or later\n"
    assert (skipped in done.stdout) == _is_redis_6()
    assert (f"release {release.id}: " in done.stdout) != _is_redis_6()


def test_nobody_without_a_password_gets_in(server: Server) -> None:
    with redis.Redis(port=server.port) as client, pytest.raises(redis.AuthenticationError):
        client.ping()


@pytest.mark.parametrize("password", ["", "change-me", "a b", "$(id)"])
def test_redis_does_not_start_without_passwords(tmp_path: Path, password: str) -> None:

    (tmp_path / "redis-server").symlink_to(find_binary())
    environ = {
        **os.environ,
        **PASSWORDS,
        "REDIS_SERVICE_PASSWORD": password,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    environ["TANDEM_REDIS_USERS"] = str(tmp_path / "users.acl")
    ended = subprocess.run(["/bin/sh", START], env=environ, capture_output=True, text=True, check=False, timeout=20)
    assert ended.returncode == 2
    assert ended.stderr.startswith("REDIS_SERVICE_PASSWORD: expected letters and digits")


def test_a_backup_has_what_redis_holds_and_can_be_restored(server: Server, tmp_path: Path) -> None:
    binaries = Path(find_binary()).parent
    own = {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "BACKUP_FOLDER": str(tmp_path)}
    with server.client("nightly") as client:
        client.set(keys.last_run(), "before the backup")
    backup = ["/bin/sh", START.with_name("backup.sh"), "-p", str(server.port)]
    made = subprocess.run(
        backup, env={**own, "REDISCLI_AUTH": "secretbackup"}, capture_output=True, text=True, check=True
    )
    assert Path(made.stdout.strip()).stat().st_mode & 0o777 == 0o600
    (tmp_path / "data").mkdir()
    restore = ["/bin/sh", START.with_name("restore.sh"), made.stdout.strip(), tmp_path / "data"]
    subprocess.run(restore, env=own, check=True)
    assert subprocess.run(restore, env=own, check=False).returncode == 2, "over data that is there"
    port = free_port()
    started = [
        find_binary(),
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        tmp_path / "data",
        "--appendonly",
        "yes",
    ]
    restored = subprocess.Popen(started, stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port) as client:
            eventually(lambda: _answers(client))
            assert client.get(keys.last_run()) == b"before the backup"
    finally:
        restored.terminate()
        restored.wait(20)


def _is_redis_6() -> bool:
    return " v=6." in subprocess.run([find_binary(), "--version"], capture_output=True, text=True, check=True).stdout


def _answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
