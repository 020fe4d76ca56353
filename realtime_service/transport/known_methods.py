"""A gRPC server that looks at no path but those of its own methods, and takes calls as soon as they come.

gRPC's accept loop decodes the path of each call of an unknown method, and one that is no UTF-8 ends the loop: a single
frame of anybody would close the listener for good. So all methods are registered, which the transport tells apart by
their bytes, and a call of any other is refused unseen. Calls of single requests pass an `accept_queue` instead of that
loop. This relies on inner parts of grpcio: tests on raw connections watch them.
"""

import asyncio
import contextvars
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import grpc.aio
from grpc._cython import cygrpc
from grpc.aio import _server

from realtime_service.errors import Overloaded, Status, UnknownMethod, status_of
from realtime_service.identity import peer_key
from realtime_service.routing.inflight import RETRY_SECONDS
from realtime_service.transport import wakeups
from realtime_service.transport.accept_queue import ARRIVED, AcceptQueue
from realtime_service.transport.rpc_handlers import Context, Handler, Method, SingleHandler

#: Calls of a method that gRPC may hand over in one turn of the event loop; more wait for the next turn.
_AT_ONCE = 64
#: Calls that are read in one turn, and handlers that begin.
_READ, _BEGIN = 4, 2
_UNKNOWN = status_of(UnknownMethod())
_TOO_MANY = status_of(Overloaded("this replica has too many calls under way", RETRY_SECONDS))


@dataclass(frozen=True, slots=True)
class _Accepted:
    """A call as gRPC hands it over. `state`: gRPC's own; `address`: of its callers; `arrived`: monotonic seconds."""

    state: Any
    context: Context
    method: bytes
    address: str
    arrived: float


class _Core(cygrpc.AioServer):  # type: ignore[misc]  # without stubs
    """`single`: the handlers of methods with one request and one answer, by path."""

    def __init__(self, loop: asyncio.AbstractEventLoop, options: Sequence[tuple[str, Any]], most_calls: int) -> None:
        super().__init__(loop, None, (), (), tuple(options), most_calls)
        self.single: dict[bytes, SingleHandler] = {}
        self._loop = loop
        self._most_calls = most_calls
        self._answers = set[asyncio.Task[None]]()
        self._others = set[asyncio.Task[None]]()
        self._accepted = AcceptQueue[_Accepted](loop, _READ, self._start)
        self._read = AcceptQueue[asyncio.Future[None]](loop, _BEGIN, _go_on)
        wakeups.read_at_once(loop)

    async def _request_registered_call(self, method: bytes) -> Any:
        """Never returns for methods of single requests: the accept loop gets none of their calls."""
        if method not in self.single:
            return await super()._request_registered_call(method)
        return await asyncio.gather(*(self._accept(method) for _ in range(_AT_ONCE)))

    async def _request_call(self) -> Any:
        """Never returns: the accept loop gets no call of an unknown method."""
        while True:
            self._spawn(_end(await super()._request_call(), self._loop, _UNKNOWN), self._others)

    async def _accept(self, method: bytes) -> None:
        """Until the listener stops, which is an error of gRPC's own."""
        while True:
            state = await super()._request_registered_call(method)
            context = cygrpc._ServicerContext(state, None, None, self._loop)
            address = peer_key(context.peer())
            self._accepted.put(_Accepted(state, context, method, address, time.monotonic()), address)

    def _start(self, call: _Accepted) -> None:
        if len(self._answers) >= self._most_calls:
            self._spawn(_end(call.state, self._loop, _TOO_MANY), self._others)
            return
        context = contextvars.copy_context()
        context.run(ARRIVED.set, call.arrived)
        self._spawn(self._answer(call), self._answers, context)

    async def _answer(self, call: _Accepted) -> None:
        """In one task and with two operations of gRPC for a call that is refused at once; grpc.aio takes two and three
        for any call."""
        handler, context = self.single[call.method], call.context
        # The caller may have left, or the listener have stopped.
        with suppress(grpc.aio.BaseError):
            raw = await context.read()
            if raw is cygrpc.EOF:
                return
            if handler.shed:
                if status := handler.shed(raw, context, self._read.waiting(call.address)):
                    await _end(call.state, self._loop, status, context.time_remaining())
                    return
                begin = self._loop.create_future()
                self._read.put(begin, call.address)
                await begin
            answering = self._watched(handler, call.state, asyncio.current_task())
            finished = (call.state, answering, raw, context, handler.response_serializer, self._loop)
            await cygrpc._finish_handler_with_unary_response(*finished)

    def _watched(self, handler: SingleHandler, call: Any, task: asyncio.Task[Any] | None) -> Method:
        """The handler's method, cancelled where its caller leaves. Only one that waits for something needs to hear."""

        async def answering(raw: bytes, context: Context) -> Any:
            watch = self._loop.call_soon(self._watch, call, task)
            try:
                return await handler.method(raw, context)
            finally:
                watch.cancel()

        return answering

    def _watch(self, call: Any, task: asyncio.Task[Any] | None) -> None:
        self._spawn(cygrpc._handle_cancellation_from_core(task, call, self._loop), self._others)

    def _spawn(
        self,
        coroutine: Coroutine[Any, Any, None],
        kept: set[asyncio.Task[None]],
        context: contextvars.Context | None = None,
    ) -> None:
        task = self._loop.create_task(coroutine, context=context)
        kept.add(task)
        task.add_done_callback(kept.discard)


class _Server(_server.Server):
    def __init__(self, options: Sequence[tuple[str, Any]], maximum_concurrent_rpcs: int) -> None:
        self._loop = cygrpc.get_working_loop()
        self._server = _Core(self._loop, options, maximum_concurrent_rpcs)

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable["grpc.GenericRpcHandler[Any, Any]"]) -> None:
        for generic in generic_rpc_handlers:
            handlers: dict[str, Handler] = generic._method_handlers  # type: ignore[attr-defined]
            self._server.add_registered_method_handlers(handlers)
            self._server.single |= {
                path.encode(): handler for path, handler in handlers.items() if isinstance(handler, SingleHandler)
            }

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        """Generated code calls both: they are registered already."""


def server(options: Sequence[tuple[str, Any]], maximum_concurrent_rpcs: int) -> grpc.aio.Server:
    """As `grpc.aio.server`; takes handlers that `grpc.method_handlers_generic_handler` has made."""
    return cast(grpc.aio.Server, _Server(options, maximum_concurrent_rpcs))


def _go_on(waiting: "asyncio.Future[None]") -> None:
    if not waiting.cancelled():
        waiting.set_result(None)


async def _end(call: Any, loop: asyncio.AbstractEventLoop, status: Status, left: float | None = None) -> None:
    """End a call with one operation of gRPC. `left`: seconds until its deadline."""
    code, trailers = status.code.value[0], status.trailers(left)
    # The caller may have left.
    with suppress(grpc.aio.BaseError):
        begun = cygrpc.SendInitialMetadataOperation((), 0)
        await cygrpc._send_error_status_from_server(call, code, status.message, trailers, begun, loop)
