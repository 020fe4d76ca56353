"""gRPC handlers of all protocols: bytes in, messages out; an error ends a call with its status.

Handlers parse raw bytes themselves, for the reason in `scoring_v1.requests`.
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
    """`method` takes requests' bytes as they arrive and writes its answers to the context."""
    return grpc.stream_stream_rpc_method_handler(_answering(method), None, _serialise)


def explain(error: Exception) -> Status:
    """The status that a caller gets for an error; an unexpected one is logged."""
    if not isinstance(error, TandemError):
        log.exception("a request failed with an unexpected error", exc_info=error)
    return status_of(error)


def _answering(method: Method) -> Method:
    async def handler(request: Any, context: Context) -> Any:
        try:
            return await method(request, context)
        except grpc.aio.InternalError:
            log.debug("the caller left before its answer was written")
        except Exception as error:  # noqa: BLE001 - the text of an unexpected exception must not reach the caller
            status = explain(error)
            try:
                await context.abort(status.code, status.message, status.trailers(context.time_remaining()))
            except grpc.aio.InternalError:
                log.debug("the caller left before it got the status %s", status.code.name)

    return handler


def _serialise(message: Any) -> bytes:
    # Bytes are another replica's answer.
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())
