"""A gRPC server that looks at no path but those of its own methods.

gRPC's accept loop decodes the path of each call of an unknown method, and one that is no UTF-8 ends the loop: a single
frame of anybody would close the listener for good. So all methods are registered, which the transport tells apart by
their bytes, and a call of any other is refused unseen. This relies on inner parts of grpcio: tests on raw connections
watch them.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import grpc.aio
from grpc._cython import cygrpc
from grpc.aio import _server

from realtime_service.transport.rpc_handlers import Handler


class _Core(cygrpc.AioServer):  # type: ignore[misc]  # without stubs
    async def _request_call(self) -> Any:
        """Never returns: the accept loop gets no call of an unknown method."""
        loop, refusals = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        while True:
            call = await super()._request_call()
            refusal = loop.create_task(_refuse(call, loop))
            refusals.add(refusal)
            refusal.add_done_callback(refusals.discard)


class _Server(_server.Server):
    def __init__(self, options: Sequence[tuple[str, Any]], maximum_concurrent_rpcs: int) -> None:
        self._loop = cygrpc.get_working_loop()
        self._server = _Core(self._loop, None, (), (), tuple(options), maximum_concurrent_rpcs)

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable["grpc.GenericRpcHandler[Any, Any]"]) -> None:
        for handler in generic_rpc_handlers:
            self._server.add_registered_method_handlers(handler._method_handlers)  # type: ignore[attr-defined]

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        """Generated code calls both: they are registered already."""


def server(options: Sequence[tuple[str, Any]], maximum_concurrent_rpcs: int) -> grpc.aio.Server:
    """As `grpc.aio.server`; takes handlers that `grpc.method_handlers_generic_handler` has made."""
    return cast(grpc.aio.Server, _Server(options, maximum_concurrent_rpcs))


async def _refuse(call: Any, loop: asyncio.AbstractEventLoop) -> None:
    # The caller may have left.
    with suppress(grpc.aio.AbortError, grpc.aio.InternalError, grpc.aio.UsageError):
        context = cygrpc._ServicerContext(call, None, None, loop)
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
