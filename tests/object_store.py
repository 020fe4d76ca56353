"""A real S3 server (moto) behind a proxy that injects faults, for tests that meet an object store."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shared_model.objects import url

KEY, SECRET = "AKIATANDEMTEST", "not-to-be-shown-anywhere"


class Fault(Enum):
    """`BUSY`: 503 SlowDown. `CUT`: the connection ends in the midst of a request. `LOST`: the request is carried out,
    and its answer never arrives. `STALL`: it waits for 2 s."""

    BUSY = auto()
    CUT = auto()
    LOST = auto()
    STALL = auto()


@dataclass
class _Injected:
    fault: Fault
    method: str
    path: str
    left: int


@dataclass
class Proxy:
    """`seen`: method and path of every request. `expired`: access keys that the service no longer takes."""

    upstream: tuple[str, int]
    seen: list[tuple[str, str]] = field(default_factory=list)
    expired: set[str] = field(default_factory=set)
    current_key: str = KEY
    _faults: list[_Injected] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def inject(self, fault: Fault, times: int, method: str = "PUT", path: str = "") -> None:
        """Let the next `times` requests with this method, and with `path` in theirs, meet a fault."""
        with self._lock:
            self._faults.append(_Injected(fault, method, path, times))

    @property
    def pending(self) -> int:
        """Faults that no request has met yet."""
        return sum(each.left for each in self._faults)

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()
        self.expired.clear()
        self.seen.clear()

    def fault_for(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.seen.append((method, path))
            for each in self._faults:
                if each.left and each.method == method and each.path in path:
                    each.left -= 1
                    return each.fault
        return None

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def _serve(self) -> None:
        if self.path == "/credentials":
            return self._credentials()
        fault = self.proxy.fault_for(self.command, self.path)
        if fault is Fault.CUT:
            self.rfile.read(int(self.headers.get("Content-Length", 0)) // 2)
            return self._hang_up()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if any(f"Credential={key}/" in self.headers.get("Authorization", "") for key in self.proxy.expired):
            return self._refuse(403, "ExpiredToken", "The provided token has expired.")
        if fault is Fault.BUSY:
            return self._refuse(503, "SlowDown", "Please reduce your request rate.")
        if fault is Fault.STALL:
            time.sleep(2)
        status, headers, answer = self._forward(body)
        if fault is Fault.LOST:
            return self._hang_up()
        self._answer(status, headers, answer)
        return None

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815 (as http.server calls them)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        with closing(http.client.HTTPConnection(*self.proxy.upstream)) as connection:
            connection.request(self.command, self.path, body, dict(self.headers))
            got = connection.getresponse()
            return got.status, got.getheaders(), got.read()

    def _credentials(self) -> None:
        """As the endpoint of a container gives them: they are good for ten minutes."""
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 600))
        given = {"AccessKeyId": self.proxy.current_key, "SecretAccessKey": SECRET, "Token": "t", "Expiration": until}
        self._answer(200, [("Content-Type", "application/json")], json.dumps(given).encode())

    def _refuse(self, status: int, code: str, message: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>{message}</Message><AWSAccessKeyId>{KEY}</AWSAccessKeyId></Error>"
        self._answer(status, [("Content-Type", "application/xml")], text.encode())

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        length = dict(headers).get("Content-Length", len(body)) if self.command == "HEAD" else len(body)
        kept = [it for it in headers if it[0].lower() not in ("content-length", "transfer-encoding", "connection")]
        for name, value in (*kept, ("Content-Length", str(length))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def s3(bucket: str) -> Iterator[Proxy]:
    """The server with one bucket, behind a proxy. Requests go to the proxy."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    proxy = Proxy(server.get_host_and_port())
    handler: Callable[..., Any] = type("Handler", (_Handler,), {"proxy": proxy})
    front = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    front.daemon_threads = True
    proxy.port = front.server_address[1]
    threading.Thread(target=front.serve_forever, daemon=True).start()
    try:
        _make_bucket(proxy.upstream, bucket)
        yield proxy
    finally:
        front.shutdown()
        front.server_close()
        server.stop()


def _make_bucket(address: tuple[str, int], bucket: str) -> None:
    with closing(http.client.HTTPConnection(*address)) as connection:
        connection.request("PUT", f"/{bucket}")
        assert connection.getresponse().status == 200


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
