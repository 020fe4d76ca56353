"""The embedded Redis: one real server per state folder, and the data outlives it."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import redis

from shared_model import settings
from shared_model.errors import SettingError, StoreUnavailable
from shared_model.redis_store import server as module
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings

pytestmark = pytest.mark.heavy

#: Waits for the word, joins the server of a state folder, says which server that is and whether it owns it, and stays
#: until told to go.
_JOIN = """
import sys, redis
from pathlib import Path
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings
print("here", flush=True)
sys.stdin.readline()
with RedisServer(StateSettings(state=Path(sys.argv[1]))) as server:
    print(redis.Redis.from_url(server.url).info("server")["run_id"], server.pid is not None, flush=True)
    sys.stdin.read()
"""


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "state"
    says = f"^TANDEM_STATE={place}: cannot be written: Not a directory; name a folder that this user may write to$"
    with pytest.raises(SettingError, match=says), RedisServer(StateSettings(state=place)):
        pass


@pytest.fixture
def state(tmp_path: Path) -> StateSettings:
    return StateSettings(state=tmp_path)


def client(server: RedisServer) -> "redis.Redis":
    return redis.Redis.from_url(server.url)


def test_redis_url_wins(state: StateSettings, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", redis_url)
    with RedisServer(state) as server:
        assert (server.url, server.pid) == (redis_url, None)
    assert list(state.state.iterdir()) == []


def test_tandem_redis_url_wins_over_redis_url(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere.invalid:6379")
    with RedisServer(StateSettings(state=tmp_path, redis_url=redis_url)) as server:
        assert client(server).ping()


@pytest.mark.parametrize(
    "url",
    [
        "localhost:6379",
        "http://localhost",
        "redis://user:secret@host:port",
        "redis+sentinel://:secret@host:1,other/tandem",
        "redis+sentinel://:secret@host:1",
    ],
)
def test_a_wrong_url_names_the_variable_and_keeps_its_password(
    state: StateSettings, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("REDIS_URL", url)
    with pytest.raises(SettingError, match=r"^REDIS_URL: expected redis://") as refused:
        RedisServer(state)
    assert "secret" not in str(refused.value)


def test_listens_on_a_private_socket_only(state: StateSettings) -> None:
    with RedisServer(state) as server:
        assert client(server).config_get("port") == {"port": "0"}
        assert (state.state / "redis" / "redis.sock").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("fsync", ["everysec", "always"])
def test_what_is_stored_is_on_disk_when_the_setting_says(state: StateSettings, fsync: str) -> None:
    with RedisServer(dataclasses.replace(state, redis_fsync=fsync)) as server:
        assert client(server).config_get("appendfsync") == {"appendfsync": fsync}


def test_no_other_promise_of_the_disk_is_taken() -> None:
    with pytest.raises(SettingError, match="TANDEM_REDIS_FSYNC='no': expected everysec or always"):
        settings.load(StateSettings, {"TANDEM_REDIS_FSYNC": "no"})


def test_freed_memory_is_joined_unless_the_allocator_is_tuned_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """glibc ends the text of its variable at the first colon."""
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert tunables_of_server(tmp_path / "own") == "glibc.malloc.tcache_count=0"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    assert tunables_of_server(tmp_path / "given") == "glibc.malloc.check=1"


def tunables_of_server(state: Path) -> str:
    with RedisServer(StateSettings(state=state)) as server, redis.Redis.from_url(server.url) as client:
        environment = psutil.Process(int(client.info("server")["process_id"])).environ()
    return environment["GLIBC_TUNABLES"].partition(":")[0]


def test_a_deep_state_folder_still_gets_a_socket(tmp_path: Path) -> None:
    with RedisServer(StateSettings(state=tmp_path / ("deep" * 30))) as server:
        assert client(server).ping()


def test_stops_with_its_owner_and_not_before(state: StateSettings) -> None:
    with RedisServer(state) as owner:
        process = psutil.Process(owner.pid)
        with RedisServer(state) as guest:
            assert (guest.url, guest.pid) == (owner.url, None)
        assert client(owner).ping()
    assert not process.is_running()


def test_processes_that_start_at_once_share_one_server(state: StateSettings) -> None:
    command = [sys.executable, "-c", _JOIN, str(state.state)]
    joined = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        assert [read_line(process) for process in joined] == ["here"] * 4
        for process in joined:
            tell(process, "go")
        servers, owners = zip(*(read_line(process).split() for process in joined), strict=True)
        assert len(set(servers)) == 1
        assert sorted(owners) == ["False", "False", "False", "True"]
    finally:
        for process in joined:
            process.communicate()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_with_the_last_of_its_users_however_each_ends(state: StateSettings, how: signal.Signals) -> None:
    command = [sys.executable, "-c", _JOIN, str(state.state)]
    owner, guest = (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    )
    try:
        for process in (owner, guest):
            assert read_line(process) == "here"
            tell(process, "go")
            assert read_line(process).endswith(str(process is owner))
        (server,) = (it for it in psutil.Process(owner.pid).children() if it.name() == "redis-server")
        url = f"unix://{state.state / 'redis' / 'redis.sock'}"
        owner.send_signal(how)
        owner.wait()
        # If the owner's end stopped the server, it would do so at once, and one of these polls would fail.
        for _ in range(50):
            assert redis.Redis.from_url(url).ping()
            time.sleep(0.01)
        guest.kill()
        server.wait(10)
    finally:
        for process in (owner, guest):
            process.kill()
            process.communicate()


def test_an_owner_that_leaves_first_leaves_the_server_to_the_others(state: StateSettings) -> None:
    with contextlib.ExitStack() as first:
        owner = first.enter_context(RedisServer(state))
        process = psutil.Process(owner.pid)
        with RedisServer(state) as guest:
            first.close()
            assert client(guest).ping()
        process.wait(10)


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def tell(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdin
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def test_data_survives_a_killed_server(state: StateSettings) -> None:
    with RedisServer(dataclasses.replace(state, redis_fsync="always")) as server:
        client(server).set("kept", "yes")
        os.kill(server.pid or 0, signal.SIGKILL)
    with RedisServer(state) as server:
        assert client(server).get("kept") == b"yes"


def test_data_survives_a_stop(state: StateSettings) -> None:
    with RedisServer(state) as server:
        client(server).set("kept", "yes")
    with RedisServer(state) as server:
        assert client(server).get("kept") == b"yes"


def test_a_hung_server_keeps_its_files_to_itself(state: StateSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer(state) as owner:
        process = psutil.Process(owner.pid)
        process.suspend()
        # Not for the server that starts: a busy machine takes longer.
        monkeypatch.setattr(module, "_STARTUP_SECONDS", 0.5)
        monkeypatch.setattr(module, "_STOP_SECONDS", 0.5)
        with pytest.raises(StoreUnavailable, match="does not answer"), RedisServer(state):
            pytest.fail("a second server was started on the first one's files")
    assert not process.is_running()  # a hung server cannot stop; it is stopped


def test_a_server_that_cannot_start_names_its_log(state: StateSettings) -> None:
    folder = state.state / "redis"
    folder.mkdir()
    (folder / "appendonly.aof").write_bytes(b"no append-only file")
    with pytest.raises(StoreUnavailable, match=f"its log is {folder / 'log'}"), RedisServer(state):
        pytest.fail("it started")


def test_only_its_user_can_read_what_redis_stores(tmp_path: Path) -> None:
    state = StateSettings(state=tmp_path / "new")
    with RedisServer(state) as server:
        client(server).set("a", "b")
    folder = state.state / "redis"
    assert state.state.stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [it.name for it in folder.rglob("*") if it.name.startswith("appendonly") and it.stat().st_mode & 0o077] == []
    assert list(folder.glob("appendonly*"))


def test_a_folder_for_sockets_that_others_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = StateSettings(state=tmp_path / ("d" * 100))
    taken = tmp_path / "taken"
    taken.mkdir(mode=0o777)
    taken.chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(taken))
    with pytest.raises(StoreUnavailable, match=r"is not a folder of this user alone"), RedisServer(deep):
        pass
    taken.chmod(0o700)
    with RedisServer(deep) as server:
        assert client(server).ping()
        assert server.url.startswith(f"unix://{taken}/tandem-")
