"""What handlers of every protocol share: bytes in, messages out; an error ends a call with the status it stands for.

Handlers take raw bytes and parse them themselves; `requests` says why.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from realtime_service.errors import Status, status_of
from shared_model.errors import TandemError

Context = grpc.aio.ServicerContext[Any, Any]
Method = Callable[[Any, Context], Awaitable[Any]]
#: Quoted: the class is generic in its stubs only.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

log = logging.getLogger(__name__)


def unary(method: Method) -> Handler:
    """`method` takes the request's bytes and returns the answer."""
    return grpc.unary_unary_rpc_method_handler(_answering(method), None, _serialise)


def server_stream(method: Callable[[bytes, Context], Awaitable[None]]) -> Handler:
    """`method` takes the request's bytes and writes its answers to the context."""
    return grpc.unary_stream_rpc_method_handler(_answering(method), None, _serialise)


def bidi_stream(method: Callable[[AsyncIterator[bytes], Context], Awaitable[None]]) -> Handler:
    """`method` takes requests' bytes as they come and writes its answers to the context."""
    return grpc.stream_stream_rpc_method_handler(_answering(method), None, _serialise)


def explain(error: Exception) -> Status:
    """What a caller is told of an error; the log is told the rest."""
    if not isinstance(error, TandemError):
        log.exception("a request failed for a reason nobody foresaw", exc_info=error)
    return status_of(error)


def _answering(method: Method) -> Method:
    async def handler(request: Any, context: Context) -> Any:
        try:
            return await method(request, context)
        except grpc.aio.InternalError:
            log.debug("the caller left while it was answered")
        except Exception as error:  # noqa: BLE001 - nothing of an unforeseen exception may reach the caller
            told = explain(error)
            try:
                await context.abort(told.code, told.message, told.trailers(context.time_remaining()))
            except grpc.aio.InternalError:
                log.debug("the caller left before it could be told %s", told.code.name)

    return handler


def _serialise(message: Any) -> bytes:
    # Bytes are another replica's answer, as it came.
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())
