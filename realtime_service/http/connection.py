"""One HTTP connection: uvicorn's, with bounds on its head, its times and its number."""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from realtime_service.errors import Overloaded
from realtime_service.identity import address_key
from realtime_service.routing.inflight import Inflight

#: Bytes of a request's line and headers.
HEAD_BYTES = 32 * 1024
#: Seconds from the opening of a connection to its first request, with its handshake.
FIRST_SECONDS = 20.0
#: Until a request has come, its body included; and how long a client may take no byte of an answer.
REQUEST_SECONDS, UNREAD_SECONDS = 10.0, 20.0


@dataclass(frozen=True)
class Bounds:
    """`connections`: all that are open. Seconds: `idle` between requests; `age`, after which one takes no more."""

    connections: Inflight
    idle: float
    age: float


class Connection(HttpToolsProtocol):
    """Relies on inner parts of uvicorn: tests on raw connections watch them."""

    def __init__(self, bounds: Bounds, config: Config, state: ServerState) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self.timeout_keep_alive = bounds.idle  # type: ignore[assignment]  # whole seconds in its annotation
        self._bounds = bounds
        self._counted = contextlib.ExitStack()
        self._head_left = HEAD_BYTES
        self._in_head = True
        self._request_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._since = time.monotonic()
        address = address_key(self.client[0]) if self.client else ""
        try:
            self._counted.enter_context(self._bounds.connections.holding(address, 1))
        except Overloaded:
            transport.abort()
            return
        self._await_request(FIRST_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._counted.close()
        self._request_came()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_left -= len(data)
        super().data_received(data)
        if self._in_head and self._head_left < 0:
            self.transport.abort()
        answering = self.cycle and not self.cycle.response_complete
        if not (answering or self._request_timer or self.timeout_keep_alive_task):
            # Empty lines before a request end the idle time, and begin none.
            self._await_request(REQUEST_SECONDS)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_request(REQUEST_SECONDS)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        if time.monotonic() - self._since > self._bounds.age:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._request_came()
        # The next head may be in the same data.
        self._in_head, self._head_left = True, HEAD_BYTES
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer:
            self._unread_timer.cancel()

    def timeout_keep_alive_handler(self) -> None:
        # A close would wait for a client that does not take the last answer.
        self.transport.abort()

    def abort(self) -> None:
        self.transport.abort()

    def _await_request(self, seconds: float) -> None:
        self._request_came()
        self._request_timer = self.loop.call_later(seconds, self.transport.abort)

    def _request_came(self) -> None:
        if self._request_timer:
            self._request_timer.cancel()
            self._request_timer = None
