"""Real redis-server and Sentinel processes on loopback ports, which tests kill, pause and turn into replicas."""

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import redis

from shared_model.redis_store.server import find_binary

#: The argument that makes a server a Sentinel.
_SENTINEL = "--sentinel"


#: They hold the ports that were given away, until this process ends.
_HELD: list[socket.socket] = []


def free_port() -> int:
    """A port on which nothing listens, and which no other process gets by chance, also not while its server is down. A
    server that sets SO_REUSEADDR, as Redis, Go and Java do, may listen there: the socket that holds it does not."""
    held = socket.socket()
    _HELD.append(held)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return int(held.getsockname()[1])


@dataclass
class Node:
    """One process. It keeps its folder and port when it is killed and started again."""

    folder: Path
    arguments: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> "redis.Redis":
        return redis.Redis.from_url(self.url, socket_timeout=5.0)

    def start(self) -> "Node":
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while not self.answers():
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.01)
        return self

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGCONT)

    def follow(self, master: "Node") -> None:
        """Become a replica, and wait until all is copied."""
        with self.client() as client:
            client.replicaof("127.0.0.1", master.port)
            deadline = time.monotonic() + 20
            while client.info("replication").get("master_link_status") != "up":
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def _command(self) -> list[str]:
        here = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        if _SENTINEL in self.arguments:
            return [find_binary(), str(self.folder / "sentinel.conf"), *self.arguments, *here]
        storing = ["--save", "", "--appendonly", "yes", "--repl-diskless-sync-delay", "0"]
        return [find_binary(), *here, *storing, *self.arguments]


@contextlib.contextmanager
def running(*nodes: Node) -> Iterator[None]:
    try:
        for node in nodes:
            node.start()
        yield
    finally:
        for node in nodes:
            if node.process:
                node.kill()


def sentinel(folder: Path, master: Node, service: str = "tandem") -> Node:
    """A Sentinel that alone decides, soon."""
    folder.mkdir(parents=True)
    (folder / "sentinel.conf").write_text(
        f"sentinel monitor {service} 127.0.0.1 {master.port} 1\n"
        f"sentinel down-after-milliseconds {service} 500\n"
        f"sentinel failover-timeout {service} 4000\n"
    )
    return Node(folder, (_SENTINEL,))
