"""The event loop of a replica, which events of gRPC reach as fast as they come.

gRPC's poller thread writes a byte into a socket for each event, and grpc.aio reads one byte in a turn of the loop. In a
burst there are more events than turns: after some 280 unread bytes the socket is full, the poller waits for a turn with
every event, and calls wait in gRPC unseen. So all bytes are read at once. This relies on inner parts of grpcio; tests
of bursts watch them.
"""

import asyncio
import functools
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import uvloop

_MANY = 4096
#: Longest wait of a stream for the interpreter lock that the event loop holds. Python's default of 5 ms is several
#: calls of an engine.
_SWITCH_SECONDS = 0.0001


class Loop(uvloop.Loop):
    """uvloop's: 6 % more calls a second than with asyncio's loop."""

    def __init__(self) -> None:
        super().__init__()
        self.reads_at_once = False

    def add_reader(  # type: ignore[override]  # of any arguments, whose types are not needed
        self, fd: Any, callback: Callable[..., Any], *args: Any
    ) -> None:
        if isinstance(callback, functools.partial) and callback.func.__name__ == "_handle_events":
            callback = _Reader(self, fd, callback)
            self.reads_at_once = True
        super().add_reader(fd, callback, *args)


def ensure_read_at_once(loop: asyncio.AbstractEventLoop) -> None:
    """To be called once gRPC watches its socket on this loop. Raises: LookupError where it does so by other means."""
    if not isinstance(loop, Loop) or not loop.reads_at_once:
        raise LookupError("grpc.aio has no reader on this event loop; this version of grpcio works in another way")


def run(main: Coroutine[Any, Any, None]) -> None:
    """As `asyncio.run`, on this event loop, which passes the interpreter lock on soon."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main)


class _Reader:
    def __init__(self, loop: Loop, wakeups: socket.socket, handle_events: Callable[[], Any]) -> None:
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
