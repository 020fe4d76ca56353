"""The HTTP interface on a real socket in this process, before handlers that a test gives; and requests to it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from realtime_service.http.application import Application
from realtime_service.http.listener import HttpListener, bind
from realtime_service.routing.inflight import Inflight
from realtime_service.settings import ServiceSettings
from realtime_service.settings.http import HttpSettings
from realtime_service.telemetry.metrics import Metrics
from realtime_service.transport.rpc_handlers import Method

SCORE, WATCH = "/scoring.v1.ScoringService/Score", "/scoring.v1.ScoringService/WatchResults"
JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Served:
    listener: HttpListener
    metrics: Metrics
    bodies: Inflight

    @property
    def port(self) -> int:
        return self.listener.port

    def ended(self, method: str, code: str) -> float:
        """How many calls of a method have ended so."""
        return self.metrics.registry.get_sample_value("tandem_calls_total", {"method": method, "code": code}) or 0.0


@contextlib.asynccontextmanager
async def serving(
    handlers: Mapping[str, Method], *, connections: int = 64, most_bytes: int = 64_000_000, **settings: Any
) -> AsyncIterator[Served]:
    metrics, bodies = Metrics(()), Inflight("bytes", most_bytes, most_bytes // 2)
    application = Application(handlers, bodies, lambda: True, metrics).asgi()
    own = ServiceSettings(http=HttpSettings(connections=connections), **settings)
    listener = HttpListener(bind("127.0.0.1:0", shared=False), application, own, None)
    await listener.start()
    try:
        yield Served(listener, metrics, bodies)
    finally:
        await listener.stop(0.1)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Caller:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sent: bytes = field(default=b"")

    @staticmethod
    async def at(port: int) -> "Caller":
        return Caller(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)).decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value for name, value in pairs}

    async def reply(self) -> Reply:
        status, headers = await self.head()
        return Reply(status, headers, await self.reader.readexactly(int(headers["content-length"])))

    async def ended(self) -> bytes:
        """All that comes until the other side closes, which it does within a few seconds."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), 10)
        return b""

    def close(self) -> None:
        self.writer.transport.abort()


def request(path: str, body: Any = None, verb: str = "", **headers: str) -> bytes:
    """`headers`: with underscores; None leaves one out."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    named: dict[str, str] = {"host": "here"}
    if body is not None:
        named |= {**JSON, "content-length": str(len(content))}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items() if value)
    usual = "GET" if body is None else "POST"
    line = f"{verb or usual} {path} HTTP/1.1"
    return f"{line}\r\n{lines}\r\n".encode() + content


async def ask(port: int, path: str, body: Any = None, verb: str = "", **headers: str) -> Reply:
    caller = await Caller.at(port)
    try:
        await caller.send(request(path, body, verb, **headers))
        return await caller.reply()
    finally:
        caller.close()


async def until(condition: Any, seconds: float = 10.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "did not happen in time"
        await asyncio.sleep(0.01)
