"""Events of gRPC reach the event loop as fast as they come.

gRPC's poller thread writes a byte into a socket for each event, and grpc.aio reads one byte in a turn of the loop. In a
burst there are more events than turns: after some 280 unread bytes the socket is full, the poller waits for a turn with
every event, and calls wait in gRPC unseen. So all bytes are read at once. This relies on inner parts of
grpcio, and on those of asyncio's selector loop; tests of bursts watch them.
"""

import asyncio
import functools
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_MANY = 4096


def read_at_once(loop: asyncio.AbstractEventLoop) -> None:
    """To be called once gRPC watches its socket on this loop. Raises: LookupError where none is found."""
    for key in list(loop._selector.get_map().values()):  # type: ignore[attr-defined]
        handle, _ = key.data
        callback = handle._callback if handle else None
        if isinstance(callback, functools.partial) and callback.func.__name__ == "_handle_events":
            loop.add_reader(key.fileobj, _Reader(loop, key.fileobj, callback))
            return
        if isinstance(callback, _Reader):
            return
    raise LookupError("grpc.aio has no reader on this event loop; this version of grpcio works in another way")


class _Reader:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, wakeups: socket.socket, handle_events: Callable[[], Any]
    ) -> None:
        self._loop = loop
        self._wakeups = wakeups
        self._handle_events = handle_events

    def __call__(self) -> None:
        with suppress(BlockingIOError):
            self._wakeups.recv(_MANY)
        try:
            self._handle_events()
        except BaseException:
            # An event of a loop that was closed is an error. No byte is left for the events behind it.
            self._loop.call_soon(self)
            raise
