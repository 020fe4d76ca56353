"""gRPC handlers of all protocols: bytes in, messages out; an error ends a call with its status.

`Handlers` makes those of callers: each knows who calls before its method runs, so that no method can forget to ask.
Handlers parse raw bytes themselves, for the reason in `messages`.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import grpc
import grpc.aio

from realtime_service.cluster.forwarded_context import ForwardedContext
from realtime_service.errors import PermissionDenied, Status, status_of
from realtime_service.identity import Identity
from realtime_service.telemetry.refusals import REFUSALS
from realtime_service.transport.stream_turns import StreamReader
from shared_model.errors import TandemError

Context = grpc.aio.ServicerContext[Any, Any]
#: Takes the request's bytes, or an iterator over them as they arrive; returns the answer, or writes its answers.
Method = Callable[[Any, Context], Awaitable[Any]]
#: The status of a call that ends on a look at its bytes. The number: of calls from its address that go before it.
Shed = Callable[[bytes, Context, int], Status | None]
#: Quoted: the class is generic in its stubs only.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

#: gRPC sends no message with a status that is not OK.
_NO_ANSWER = b""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A call when it arrives. `forwarded`: the decision of the replica that forwarded it, None for a client's call."""

    caller: Identity
    forwarded: ForwardedContext | None = None


#: As `Method`, and knows who calls.
CallerMethod = Callable[[Any, Context, Arrival], Awaitable[Any]]


class Overload(Protocol):
    """How the service of a method fares where its calls wait to be read."""

    @property
    def starved(self) -> bool:
        """Whether devices have hardly any work, so that a call that is read now would be answered soon."""

    def expired(self, waited: float) -> None:
        """Count a call whose deadline passed before it was read, so many seconds after it came."""


class Reception(Protocol):
    """Each call of a caller passes through these before its method runs."""

    async def arrive(self, context: Context) -> Arrival:
        """The caller. Raises: Unauthenticated; BadInput."""

    def counted(self, arrival: Arrival) -> AbstractContextManager[None]:
        """Count a call while it is under way. Raises: Overloaded."""

    def reader(self, context: Context) -> StreamReader:
        """Of the messages of a stream."""

    async def decompressed(self, raw: bytes, arrival: Arrival) -> bytes:
        """A request's bytes as they are parsed. Raises: Overloaded; BadInput; MessageTooLarge."""


class Handlers:
    def __init__(self, reception: Reception) -> None:
        self._reception = reception

    def unary(
        self,
        method: CallerMethod,
        *,
        scores: bool = True,
        shed: Shed | None = None,
        overload: Overload | None = None,
    ) -> Handler:
        """`method` takes the request's bytes and returns the answer. `scores`: its callers need a role that scores;
        `shed`, `overload`: as in `SingleHandler`."""
        return unary(self._identified(method, scores), shed, overload)

    def server_stream(self, method: Callable[[bytes, Context, Arrival], Awaitable[None]]) -> Handler:
        """`method` takes the request's bytes and writes its answers to the context."""
        return server_stream(self._identified(method, True))

    def bidi_stream(self, method: Callable[[AsyncIterator[bytes], Context, Arrival], Awaitable[None]]) -> Handler:
        """`method` takes requests' bytes as they arrive and writes its answers to the context."""
        return bidi_stream(self._identified(method, True, streams=True))

    def _identified(self, method: CallerMethod, scores: bool, *, streams: bool = False) -> Method:
        """`streams`: the requests are a stream."""

        async def identified(request: Any, context: Context) -> Any:
            arrival = await self._reception.arrive(context)
            if scores and not arrival.caller.may_score:
                raise PermissionDenied("the roles of the token do not permit this method")
            with self._reception.counted(arrival):
                if streams:
                    return await method(_Messages(self._reception, context, arrival), context, arrival)
                return await method(await self._reception.decompressed(request, arrival), context, arrival)

        return identified


class _Messages:
    """The messages of a stream, decompressed. A generator, as gRPC's own iterator is, would keep the last one until the
    next one comes."""

    def __init__(self, reception: Reception, context: Context, arrival: Arrival) -> None:
        self._reception = reception
        self._reader = reception.reader(context)
        self._arrival = arrival

    def __aiter__(self) -> "_Messages":
        return self

    async def __anext__(self) -> bytes:
        raw = await self._reader.next()
        if raw is grpc.aio.EOF:  # type: ignore[attr-defined]  # not in its stubs
            raise StopAsyncIteration
        return await self._reception.decompressed(raw, self._arrival)


class SingleHandler(grpc.RpcMethodHandler):  # type: ignore[type-arg]  # generic in its stubs only
    """Of a method with one request and one answer. `shed`: asked by the listener before it does anything else.
    `overload`: of calls that wait for devices."""

    request_streaming = response_streaming = False
    request_deserializer = unary_stream = stream_unary = stream_stream = None

    def __init__(self, method: Method, shed: Shed | None, overload: Overload | None) -> None:
        self.method = method
        self.unary_unary = method  # type: ignore[assignment]  # the stubs know methods that are not coroutines
        self.response_serializer = _serialise
        self.shed = shed
        self.overload = overload


def unary(method: Method, shed: Shed | None = None, overload: Overload | None = None) -> Handler:
    """As in `Handlers`, for callers that are not identified: of health checks, and other replicas."""
    return SingleHandler(_answering(method), shed, overload)


def server_stream(method: Method) -> Handler:
    """As `unary`."""
    return grpc.unary_stream_rpc_method_handler(_answering(method), None, _serialise)


def bidi_stream(method: Method) -> Handler:
    """As `unary`."""
    return grpc.stream_stream_rpc_method_handler(_answering(method), None, _serialise)


def methods_of(offered: "Iterable[grpc.GenericRpcHandler[Any, Any]]") -> dict[str, Method]:
    """The methods with one request, by path, for calls that do not come by gRPC."""
    handlers: dict[str, Any] = {}
    for generic in offered:
        handlers |= generic._method_handlers  # type: ignore[attr-defined]
    return {path: method for path, it in handlers.items() if (method := it.unary_unary or it.unary_stream)}


def explain(error: Exception) -> Status:
    """The status that a caller gets for an error. An unexpected one is logged, and refusals are, some of many."""
    if not isinstance(error, TandemError):
        log.exception("a request failed with an unexpected error", exc_info=error)
    status = status_of(error)
    REFUSALS.note(status)
    return status


def _answering(method: Method) -> Method:
    async def handler(request: Any, context: Context) -> Any:
        try:
            return await method(request, context)
        except grpc.aio.InternalError:
            log.debug("the caller left before its answer was written")
        except Exception as error:  # noqa: BLE001 - the text of an unexpected exception must not reach the caller
            # Not `abort`: gRPC keeps the exception that it raises, and with it, by the frames of its traceback, request
            # and context, until a collection of the oldest garbage.
            status = explain(error)
            context.set_code(status.code)
            context.set_details(status.message)
            context.set_trailing_metadata(status.trailers(context.time_remaining()))
        return _NO_ANSWER

    return handler


def _serialise(message: Any) -> bytes:
    # Bytes are another replica's answer.
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())
