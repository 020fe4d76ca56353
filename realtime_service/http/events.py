"""Server-sent events: the answers of a streaming method."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import Message
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from realtime_service.errors import Status
from realtime_service.http import disconnects, json_messages, statuses
from realtime_service.http.call_context import HttpCallContext

#: An error that comes within this time has a status of HTTP; a later one is an event.
FIRST_SECONDS = 0.5
#: Between comments on a stream without events: proxies close quiet connections, and writing shows that one is dead.
COMMENT_SECONDS = 15.0


class EventStream(Response):
    """Events `result`, one for each answer; then `end`, or `failure` with the body of an error. A caller that does not
    read is not written to: the method waits in `write`."""

    def __init__(
        self, answer: Callable[[], Awaitable[Any]], context: HttpCallContext, ended: Callable[[Status], None]
    ) -> None:
        """`answer`: runs the method, which writes to `context` and sets its status there. `ended`: called once."""
        self._answer = answer
        self._context = context
        self._ended = ended
        self._begun = False
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        self._context.write = self._result
        status = Status(grpc.StatusCode.CANCELLED, "")
        try:
            async with disconnects.cancelling(receive):
                await self._run()
                status = statuses.status_of_call(self._context)
                if status.code is not grpc.StatusCode.OK and not self._begun:
                    await statuses.error_response(status)(scope, receive, send)
                    return
                if status.code is grpc.StatusCode.OK:
                    await self._event("end", {})
                else:
                    await self._event("failure", statuses.body(status))
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except disconnects.CallerLeft:
            pass
        finally:
            self._ended(status)

    async def _run(self) -> None:
        answering = asyncio.ensure_future(self._answer())
        try:
            while not answering.done():
                seconds = COMMENT_SECONDS if self._begun else FIRST_SECONDS
                done, _ = await asyncio.wait({answering}, timeout=seconds)
                if not done:
                    await self._write(b": waiting\n\n")
            answering.result()
        finally:
            answering.cancel()

    async def _result(self, answer: Message) -> None:
        await self._event("result", json_messages.shown(answer))

    async def _event(self, name: str, data: dict[str, Any]) -> None:
        # JSON holds no line end outside of its strings, where it is escaped.
        await self._write(b"event: %s\ndata: %s\n\n" % (name.encode(), json_messages.encode(data)))

    async def _write(self, event: bytes) -> None:
        if not self._begun:
            self._begun = True
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": event, "more_body": True})
        # To a caller that has left, sending never waits: the cancellation needs a turn.
        await asyncio.sleep(0)
