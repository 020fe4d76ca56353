"""A real S3 server that injects faults, for tests that meet an object store.

It is a process of its own: DeltaTable.history() holds the interpreter while it waits for an answer.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from shared_model.objects import url
from tests.s3_server import KEY, SECRET, Fault

__all__ = ["KEY", "SECRET", "Fault", "Proxy", "reconnect", "refresh_from_endpoint", "s3"]

_REPOSITORY = Path(__file__).parents[1]


@dataclass
class Proxy:
    """The server, as its clients see it."""

    url: str
    _calls: IO[str]
    _answers: IO[str]

    def inject(self, fault: Fault, times: int, method: str = "PUT", path: str = "") -> None:
        """Let the next `times` requests with this method, and with `path` in theirs, meet a fault."""
        self._call("inject", fault, times, method, path)

    def expire(self, key: str = KEY, then: str = KEY) -> None:
        """Take an access key no longer. The endpoint for credentials gives `then`."""
        self._call("expire", key, then)

    def delay(self, seconds: float) -> None:
        """Let every request take so much longer."""
        self._call("delay", seconds)

    @property
    def pending(self) -> int:
        """Faults that no request has met yet."""
        return int(self._call("pending"))

    @property
    def seen(self) -> list[tuple[str, str]]:
        """Method and path of every request since `clear`."""
        return [(method, path) for method, path in self._call("seen")]

    def clear(self) -> None:
        self._call("clear")

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def _call(self, name: str, *arguments: object) -> Any:
        print(json.dumps((name, arguments)), file=self._calls, flush=True)
        return json.loads(self._answers.readline())


@contextmanager
def s3(bucket: str) -> Iterator[Proxy]:
    """The server with one bucket."""
    command = [sys.executable, "-m", "tests.s3_server", bucket]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=_REPOSITORY) as process:
        assert process.stdin
        assert process.stdout
        try:
            yield Proxy(process.stdout.readline().strip(), process.stdin, process.stdout)
        finally:
            process.kill()


def reconnect() -> None:
    """Have this process read its environment again."""
    url._connect.cache_clear()


def refresh_from_endpoint(proxy: Proxy, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let credentials come from an endpoint that can be asked again, as those of a container do."""
    token = folder / "token"
    token.write_text("t")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{proxy.url}/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
    reconnect()
