"""A gRPC server that looks at no path but those of its own methods, and takes calls as soon as they come.

gRPC's accept loop decodes the path of each call of an unknown method, and one that is no UTF-8 ends the loop: a single
frame of anybody would close the listener for good. So all methods are registered, which the transport tells apart by
their bytes, and a call of any other is refused unseen. Calls of single requests pass an `accept_queue` instead of that
loop. This relies on inner parts of grpcio: tests on raw connections watch them.
"""

import asyncio
import contextvars
import itertools
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, cast

import grpc
import grpc.aio
from grpc._cython import cygrpc
from grpc.aio import _server

from realtime_service.errors import DeadlineExpired, Overloaded, Status, UnknownMethod, status_of
from realtime_service.identity import peer_key
from realtime_service.routing.inflight import RETRY_SECONDS
from realtime_service.scheduling.calls_under_way import CallsUnderWay
from realtime_service.telemetry.metrics import UNKNOWN_METHOD
from realtime_service.telemetry.refusals import REFUSALS
from realtime_service.transport import compression, event_loop
from realtime_service.transport.accept_queue import ARRIVED, AcceptQueue, ReadQueue
from realtime_service.transport.messages import MAX_MESSAGE_BYTES
from realtime_service.transport.rpc_handlers import Context, Handler, Method, SingleHandler

#: Calls of a method that gRPC may hand over in one turn of the event loop; more wait for the next turn.
_AT_ONCE = 64
#: Calls whose reading begins in one turn, and handlers that begin.
_READ, _BEGIN = 4, 2
#: Until the message of a call has come, once it is read.
READ_SECONDS = 10.0
LOOK_SECONDS = 1.0
_UNKNOWN = status_of(UnknownMethod())
_TOO_SLOW = status_of(DeadlineExpired(f"the message of the call did not come within {READ_SECONDS:.0f} s"))
_EXPIRED = status_of(DeadlineExpired("the deadline passed before the call was read"))
#: Codes of calls that could not be answered in time.
_TOO_LATE = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED)
_TOO_MANY = status_of(Overloaded("this replica has too many calls under way", RETRY_SECONDS))


class CallCounts(Protocol):
    """`metrics.Metrics`: counts calls by method and code."""

    def expect_calls(self, method: str) -> None: ...

    def call_ended(self, method: str, code: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """`calls`: answered at once; `messages`: read at once, in all and of an address."""

    calls: int
    messages: int
    messages_of_address: int


@dataclass(frozen=True, slots=True, eq=False)
class _Accepted:
    """A call as gRPC hands it over. `state`: gRPC's own; `address`: of its callers; `arrived`: monotonic seconds."""

    state: Any
    context: Context
    method: bytes
    address: str
    arrived: float


class _Core(cygrpc.AioServer):  # type: ignore[misc]  # without stubs
    """`single`: the handlers of methods with one request and one answer, by path."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: Sequence[tuple[str, Any]],
        limits: Limits,
        counts: CallCounts,
        calls: CallsUnderWay,
    ) -> None:
        super().__init__(loop, None, (), (), tuple(options), limits.calls)
        self.single: dict[bytes, SingleHandler] = {}
        self._counts = counts
        self._calls = calls
        self._loop = loop
        self._most_calls = limits.calls
        self._answers = set[asyncio.Task[None]]()
        self._others = set[asyncio.Task[None]]()
        places = (limits.messages, limits.messages_of_address)
        self._accepted = ReadQueue[_Accepted](loop, _READ, self._start, *places, over=self._expired)
        # Since when, the longest first.
        self._reading: dict[_Accepted, float] = {}
        self._look: asyncio.TimerHandle | None = None
        self._read = AcceptQueue[asyncio.Future[None]](loop, _BEGIN, _go_on)
        event_loop.ensure_read_at_once(loop)

    async def _request_registered_call(self, method: bytes) -> Any:
        """Never returns for methods of single requests: the accept loop gets none of their calls."""
        if method not in self.single:
            return await super()._request_registered_call(method)
        return await asyncio.gather(*(self._accept(method) for _ in range(_AT_ONCE)))

    async def _request_call(self) -> Any:
        """Never returns: the accept loop gets no call of an unknown method."""
        while True:
            self._refuse(UNKNOWN_METHOD.encode(), await super()._request_call(), _UNKNOWN)

    async def _accept(self, method: bytes) -> None:
        """Until the listener stops, which is an error of gRPC's own."""
        while True:
            # In no variable of this frame: it would keep the ended call, and its stream, until the next one comes.
            self._take(await super()._request_registered_call(method), method)

    def _take(self, state: Any, method: bytes) -> None:
        context = cygrpc._ServicerContext(state, None, None, self._loop)
        address = peer_key(context.peer())
        if len(self._accepted) < self._most_calls:
            self._calls.count += 1
            self._accepted.hand(_Accepted(state, context, method, address, time.monotonic()), address)
        else:
            self._refuse(method, state, _TOO_MANY)

    def _start(self, call: _Accepted) -> None:
        if len(self._answers) >= self._most_calls:
            self._calls.count -= 1
            self._accepted.ended(call.address)
            self._refuse(call.method, call.state, _TOO_MANY)
            return
        context = contextvars.copy_context()
        context.run(ARRIVED.set, call.arrived)
        self._spawn(self._answer(call), self._answers, context)

    def _expired(self, call: _Accepted) -> bool:
        """End a call whose deadline has passed, for a part of what it costs to read it."""
        left = call.context.time_remaining()
        if left is None or left > 0:
            return False
        self._calls.count -= 1
        if overload := self.single[call.method].overload:
            overload.expired(time.monotonic() - call.arrived)
        self._refuse(call.method, call.state, _EXPIRED)
        return True

    async def _answer(self, call: _Accepted) -> None:
        try:
            await self._answered(call)
        finally:
            self._calls.count -= 1

    async def _answered(self, call: _Accepted) -> None:
        """In one task and with two operations of gRPC for a call that is refused at once; grpc.aio takes two and three
        for any call."""
        handler, context = self.single[call.method], call.context
        # The caller may have left, or the listener have stopped.
        with suppress(grpc.aio.BaseError):
            raw = await self._message(call)
            if raw is cygrpc.EOF:
                return
            if handler.shed:
                if status := handler.shed(raw, context, self._read.waiting(call.address)):
                    self._count(call.method, status)
                    REFUSALS.note(status, call.address)
                    self._note_end(call, status.code)
                    await _end(call.state, self._loop, status, context.time_remaining())
                    return
                begin = self._loop.create_future()
                self._read.hand(begin, call.address)
                await begin
            # Cancels this task where its caller leaves. At once, because gRPC loses half a kilobyte of memory with each
            # answer that it cannot send.
            leaving = cygrpc._handle_cancellation_from_core(asyncio.current_task(), call.state, self._loop)
            self._spawn(leaving, self._others)
            finished = (call.state, handler.method, raw, context, handler.response_serializer, self._loop)
            await cygrpc._finish_handler_with_unary_response(*finished)
            self._note_end(call, context.code())

    def _note_end(self, call: _Accepted, code: grpc.StatusCode | None) -> None:
        """Have the newest call read soon, if this one was read too late for devices that wait for work."""
        overload = self.single[call.method].overload
        if overload and code in _TOO_LATE and overload.starved:
            self._accepted.prefer_newest(call.address)

    async def _message(self, call: _Accepted) -> Any:
        self._reading[call] = time.monotonic()
        if self._look is None:
            self._look = self._loop.call_later(LOOK_SECONDS, self._end_slow)
        size = 0
        try:
            raw = await call.context.read()
            size = 0 if raw is cygrpc.EOF else min(MAX_MESSAGE_BYTES, compression.parsed_size(raw))
            return raw
        finally:
            self._reading.pop(call, None)
            self._accepted.ended(call.address, size)

    def _end_slow(self) -> None:
        """End calls whose messages do not come: their reading ends with them."""
        begun = time.monotonic() - READ_SECONDS
        for call in list(itertools.takewhile(lambda it: self._reading[it] < begun, self._reading)):
            del self._reading[call]
            self._refuse(call.method, call.state, _TOO_SLOW)
        self._look = self._loop.call_later(LOOK_SECONDS, self._end_slow) if self._reading else None

    def _refuse(self, method: bytes, state: Any, status: Status) -> None:
        self._count(method, status)
        REFUSALS.note(status)
        self._spawn(_end(state, self._loop, status), self._others)

    def _count(self, method: bytes, status: Status) -> None:
        self._counts.call_ended(method.decode(), status.code.name)

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
    def __init__(
        self, options: Sequence[tuple[str, Any]], limits: Limits, counts: CallCounts, calls: CallsUnderWay
    ) -> None:
        self._loop = cygrpc.get_working_loop()
        self._counts = counts
        self._server = _Core(self._loop, options, limits, counts, calls)

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable["grpc.GenericRpcHandler[Any, Any]"]) -> None:
        for generic in generic_rpc_handlers:
            offered: dict[str, Handler] = generic._method_handlers  # type: ignore[attr-defined]
            handlers = {path: _counted(path, handler, self._counts) for path, handler in offered.items()}
            self._server.add_registered_method_handlers(handlers)
            self._server.single |= {
                path.encode(): handler for path, handler in handlers.items() if isinstance(handler, SingleHandler)
            }

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        """Generated code calls both: they are registered already."""


def server(
    options: Sequence[tuple[str, Any]], limits: Limits, counts: CallCounts, calls: CallsUnderWay
) -> grpc.aio.Server:
    """As `grpc.aio.server`; takes handlers that `grpc.method_handlers_generic_handler` has made. `calls`: counts those
    of single requests."""
    return cast(grpc.aio.Server, _Server(options, limits, counts, calls))


def _counted(path: str, handler: Handler, counts: CallCounts) -> Handler:
    """The handler, whose ends are counted."""
    counts.expect_calls(path)
    if isinstance(handler, SingleHandler):
        return SingleHandler(_counting(path, handler.method, counts), handler.shed, handler.overload)
    asks, answers = ("stream" if it else "unary" for it in (handler.request_streaming, handler.response_streaming))
    method = _counting(path, getattr(handler, f"{asks}_{answers}"), counts)
    make = getattr(grpc, f"{asks}_{answers}_rpc_method_handler")
    return cast(Handler, make(method, handler.request_deserializer, handler.response_serializer))


def _counting(path: str, method: Method, counts: CallCounts) -> Method:
    async def counting(request: Any, context: Context) -> Any:
        code = grpc.StatusCode.UNKNOWN.name
        try:
            answer = await method(request, context)
            # None where the method has set no code.
            code = (context.code() or grpc.StatusCode.OK).name
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED.name
            raise
        finally:
            counts.call_ended(path, code)
        return answer

    return counting


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
