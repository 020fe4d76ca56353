"""A listener on this host, as long as a test needs it."""

import contextlib
from collections.abc import AsyncIterator

import grpc

from realtime_service.scheduling.calls_under_way import CallsUnderWay
from realtime_service.settings import ServiceSettings
from realtime_service.transport.known_methods import CallCounts
from realtime_service.transport.listener import bind, make_listener


@contextlib.asynccontextmanager
async def listening(
    *handlers: grpc.GenericRpcHandler,
    settings: ServiceSettings | None = None,
    counts: CallCounts | None = None,
    calls: CallsUnderWay | None = None,
) -> AsyncIterator[str]:
    """The address at which `handlers` answer."""
    listener = make_listener(False, settings or ServiceSettings(), counts, calls)
    listener.add_generic_rpc_handlers(handlers)
    address = bind(listener, "127.0.0.1:0")
    await listener.start()
    try:
        yield address
    finally:
        await listener.stop(None)
