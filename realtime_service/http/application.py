"""The ASGI application: each route's request becomes a message, and the gRPC method's handler answers it."""

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf.message import Message
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from protos.inference import open_inference_pb2 as inference
from realtime_service.errors import DeadlineExpired, MessageTooLarge, Status, status_of
from realtime_service.http import disconnects, json_messages, pages, statuses
from realtime_service.http.call_context import HttpCallContext, context_of, peer_of
from realtime_service.http.events import EventStream
from realtime_service.http.routes import ROUTES, Asked, Route
from realtime_service.identity import peer_key
from realtime_service.routing.inflight import Inflight
from realtime_service.telemetry.metrics import UNKNOWN_METHOD, Metrics, Outcome
from realtime_service.telemetry.scope import HttpCall
from realtime_service.transport import messages, rpc_handlers
from realtime_service.transport.accept_queue import ARRIVED
from realtime_service.transport.rpc_handlers import Method
from shared_model.errors import BadInput

#: A body is held in the budget of bytes by steps.
STEP_BYTES = 64 * 1024
#: A larger answer is converted by a thread.
SMALL_ANSWER = 8 * 1024
_JSON = {"content-type": "application/json"}
_EXPIRED = status_of(DeadlineExpired("the deadline of the call passed"))


class Application:
    """`handlers`: of gRPC's methods, by path. `bodies`: the bytes that are read, and not yet a message. `ready`:
    whether this replica takes calls of a lane, "" for any."""

    def __init__(
        self, handlers: Mapping[str, Method], bodies: Inflight, ready: Callable[[str], bool], metrics: Metrics
    ) -> None:
        self._handlers = handlers
        self._bodies = bodies
        self._ready = ready
        self._metrics = metrics

    def asgi(self) -> Starlette:
        offered = [StarletteRoute(it.path, self._endpoint(it), methods=[it.verb]) for it in ROUTES]
        others = {
            "/v2/health/live": self._live,
            "/v2/health/ready": self._server_ready,
            "/openapi.json": pages.document,
            "/docs": pages.page,
        }
        offered += [StarletteRoute(path, endpoint, methods=["GET"]) for path, endpoint in others.items()]
        return Starlette(routes=offered, exception_handlers={HTTPException: self._no_route})

    async def _live(self, request: Request) -> Response:
        return Response(json_messages.encode({"live": True}), headers=_JSON)

    async def _server_ready(self, request: Request) -> Response:
        ready = all(map(self._ready, request.query_params.getlist("lane") or [""]))
        return Response(json_messages.encode({"ready": ready}), 200 if ready else 503, _JSON)

    async def _no_route(self, request: Request, error: Exception) -> Response:
        code = error.status_code if isinstance(error, HTTPException) else 404
        said = {404: "no such path; /docs lists them", 405: f"{request.method} is not offered here"}
        status = Status(grpc.StatusCode.UNIMPLEMENTED, said.get(code, "not offered"))
        self._metrics.call_ended(UNKNOWN_METHOD, status.code.name)
        return statuses.error_response(status, code)

    def _endpoint(self, route: Route) -> Callable[[Request], Awaitable[Response]]:
        return functools.partial(self._answer, route)

    async def _answer(self, route: Route, request: Request) -> Response:
        ARRIVED.set(time.monotonic())
        try:
            context = context_of(request, HttpCall(route.verb, route.path, statuses.STATUSES.__getitem__))
            raw = await self._message(route, request)
        except ClientDisconnect:
            return self._ended(route, Status(grpc.StatusCode.CANCELLED, ""))
        except Exception as error:  # noqa: BLE001 - the text of an unexpected exception must not reach the caller
            if route.body and isinstance(error, BadInput | MessageTooLarge):
                self._metrics.ended(None, Outcome.INVALID)
            return self._ended(route, rpc_handlers.explain(error))
        method = functools.partial(self._run, self._handlers[route.method], raw, context)
        if route.streams:
            return EventStream(method, context, functools.partial(self._count, route))
        try:
            async with disconnects.cancelling(request.receive):
                return await self._shown(route, await method(), context)
        except disconnects.CallerLeft:
            return self._ended(route, Status(grpc.StatusCode.CANCELLED, ""))

    async def _run(self, handler: Any, raw: bytes, context: HttpCallContext) -> Any:
        """The handler's answer; its status is in the context."""
        left = context.time_remaining()
        if left is None:
            return await handler(raw, context)
        try:
            async with asyncio.timeout(left):
                return await handler(raw, context)
        except TimeoutError:
            context.set_code(_EXPIRED.code)
            context.set_details(_EXPIRED.message)
            return b""

    async def _shown(self, route: Route, found: Any, context: HttpCallContext) -> Response:
        status = statuses.status_of_call(context)
        if status.code is not grpc.StatusCode.OK:
            return self._ended(route, status)

        def read() -> tuple[Message, bytes]:
            # Bytes are another replica's answer.
            answer: Message = route.answer.FromString(found) if isinstance(found, bytes) else found
            return answer, json_messages.encode(route.show(answer))

        small = (len(found) if isinstance(found, bytes) else found.ByteSize()) <= SMALL_ANSWER
        answer, body = read() if small else await messages.apart(read)
        self._count(route, status)
        unready = isinstance(answer, inference.ModelReadyResponse) and not answer.ready
        return Response(body, 503 if unready else 200, _JSON)

    async def _message(self, route: Route, request: Request) -> bytes:
        """The request as the bytes of its message. Raises: BadInput; MessageTooLarge; Overloaded; ClientDisconnect."""
        query = {name: request.query_params.getlist(name) for name in request.query_params}

        def message(raw: bytes) -> bytes:
            body = json_messages.decode(raw) if route.body else None
            return route.read(Asked(request.path_params, query, body)).SerializeToString()

        if not route.body:
            return message(b"")
        _check_headers(request)
        with contextlib.ExitStack() as held:
            return await messages.read(message, await self._body(request, held))

    async def _body(self, request: Request, held: contextlib.ExitStack) -> bytes:
        read, holds, address = bytearray(), 0, peer_key(peer_of(request))
        async for part in request.stream():
            messages.check_size(len(read) + len(part))
            read += part
            while holds < len(read):
                held.enter_context(self._bodies.holding(address, STEP_BYTES))
                holds += STEP_BYTES
        return bytes(read)

    def _ended(self, route: Route, status: Status) -> Response:
        self._count(route, status)
        return statuses.error_response(status)

    def _count(self, route: Route, status: Status) -> None:
        self._metrics.call_ended(route.method, status.code.name)


def _check_headers(request: Request) -> None:
    """A page of another origin can send a body of another type without being asked for. Raises: BadInput;
    MessageTooLarge."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise BadInput("content-type", "must be application/json")
    for name in ("content-encoding", "inference-header-content-length"):
        if name in request.headers:
            raise BadInput(name, "is not taken: a body is plain JSON")
    length = request.headers.get("content-length", "0")
    messages.check_size(int(length) if length.isascii() and length.isdigit() else 0)
