"""`python -m tests.s3_server BUCKET`: a real S3 server (moto) behind a proxy that injects faults.

It prints the address of the proxy, then takes one call of `Faults` a line, as JSON, and answers each with one. It ends
with its input, so that it never outlives the process that started it.
"""

import http.client
import json
import logging
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY, SECRET = "AKIATANDEMTEST", "not-to-be-shown-anywhere"


class Fault(StrEnum):
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
class Faults:
    """Faults that the proxy injects. `_seen`: method and path of every request. `expired`: access keys that the
    service no longer takes; `current_key` is what the endpoint for credentials gives. `latency`: seconds that every
    request takes longer."""

    expired: set[str] = field(default_factory=set)
    current_key: str = KEY
    latency: float = 0.0
    _seen: list[tuple[str, str]] = field(default_factory=list)
    _injected: list[_Injected] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def inject(self, fault: str, times: int, method: str, path: str) -> None:
        with self._lock:
            self._injected.append(_Injected(Fault(fault), method, path, times))

    def expire(self, key: str, then: str) -> None:
        self.expired.add(key)
        self.current_key = then

    def delay(self, seconds: float) -> None:
        self.latency = seconds

    def pending(self) -> int:
        return sum(each.left for each in self._injected)

    def seen(self) -> list[tuple[str, str]]:
        return self._seen

    def clear(self) -> None:
        with self._lock:
            self._injected.clear()
            self._seen.clear()
        self.expired.clear()
        self.current_key = KEY
        self.latency = 0.0

    def meet(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self._seen.append((method, path))
            for each in self._injected:
                if each.left and each.method == method and each.path in path:
                    each.left -= 1
                    return each.fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults: Faults
    upstream: tuple[str, int]

    def _serve(self) -> None:
        if self.path == "/credentials":
            return self._credentials()
        time.sleep(self.faults.latency)
        fault = self.faults.meet(self.command, self.path)
        if fault is Fault.CUT:
            self.rfile.read(int(self.headers.get("Content-Length", 0)) // 2)
            return self._hang_up()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if any(f"Credential={key}/" in self.headers.get("Authorization", "") for key in self.faults.expired):
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
        with closing(http.client.HTTPConnection(*self.upstream)) as connection:
            connection.request(self.command, self.path, body, dict(self.headers))
            got = connection.getresponse()
            return got.status, got.getheaders(), got.read()

    def _credentials(self) -> None:
        """As the endpoint of a container gives them: they are good for ten minutes."""
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 600))
        given = {"AccessKeyId": self.faults.current_key, "SecretAccessKey": SECRET, "Token": "t", "Expiration": until}
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
            # A reader that has seen enough hangs up.
            with suppress(ConnectionError):
                self.wfile.write(body)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, *args: Any) -> None:
        pass


def main(bucket: str) -> None:
    # Processes that only name faults do without it.
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    upstream, faults = moto.get_host_and_port(), Faults()
    with closing(http.client.HTTPConnection(*upstream)) as connection:
        connection.request("PUT", f"/{bucket}")
        assert connection.getresponse().status == 200
    handler: Any = type("Handler", (_Handler,), {"faults": faults, "upstream": upstream})
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    _say(f"http://127.0.0.1:{proxy.server_port}")
    for line in sys.stdin:
        name, arguments = json.loads(line)
        _say(json.dumps(getattr(faults, name)(*arguments)))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
