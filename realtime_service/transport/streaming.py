"""Requests that come on one stream: many at once, never more than whoever sends them also reads answers for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from realtime_service.errors import ReplicaUnavailable

#: Requests of one stream that are read and whose answers are not sent.
WINDOW = 64
#: A request takes one place of the window for each of these bytes that it begins: large ones do not add up.
PLACE_BYTES = 64 * 1024

Answer = TypeVar("Answer")


class Stoppable(Protocol):
    """A stream. `stopped`: whether it ended, or will, before whoever sends has sent all."""

    stopped: bool

    async def run(self) -> None: ...

    def stop(self) -> None:
        """Read no further request, and end when those that were read are answered."""


class OpenStreams:
    """The streams of this replica that are open."""

    def __init__(self) -> None:
        self._open: set[Stoppable] = set()

    async def answer(
        self,
        incoming: AsyncIterator[bytes],
        answer: Callable[[bytes], Awaitable[object]],
        write: Callable[[object], Awaitable[None]],
        *,
        in_order: bool,
    ) -> None:
        """Write the answer of every request: in the order of the requests, or as they finish.

        A request keeps its place until its answer is written, and `write` returns when the transport has taken it. So
        whoever does not read answers is not read from, and what waits here stays small. `answer` turns failures into
        answers. Raises: ReplicaUnavailable when this replica closes and has answered what it had read.
        """
        await self.run(_Stream(incoming, answer, write, in_order))

    async def run(self, stream: "Stoppable") -> None:
        """Run a stream until it has answered all. Raises: as `answer`, and what the stream raises."""
        self._open.add(stream)
        try:
            await stream.run()
        finally:
            self._open.discard(stream)
        if stream.stopped:
            raise ReplicaUnavailable("this replica is closing; send what has no answer yet to another")

    def close(self) -> None:
        """Read no further request of any stream. Each ends when what it has read is answered."""
        for stream in self._open:
            stream.stop()


class _Stream(Generic[Answer]):
    """Answers one request at a time; see `Stoppable`."""

    def __init__(
        self,
        incoming: AsyncIterator[bytes],
        answer: Callable[[bytes], Awaitable[Answer]],
        write: Callable[[Answer], Awaitable[None]],
        in_order: bool,
    ) -> None:
        self.stopped = False
        self._incoming = incoming
        self._answer = answer
        self._write = write
        self._in_order = in_order
        self._window = asyncio.Semaphore(WINDOW)
        self._held: dict[asyncio.Future[Answer], int] = {}
        self._ready: asyncio.Queue[asyncio.Future[Answer] | None] = asyncio.Queue()

    async def run(self) -> None:
        self._reader = asyncio.create_task(self._read())
        # Also the end of reading is a reason to look whether anything is left.
        self._reader.add_done_callback(lambda _: self._ready.put_nowait(None))
        try:
            while self._held or not self._reader.done():
                if (answer := await self._ready.get()) is not None:
                    await self._write(await answer)
                    for _ in range(self._held.pop(answer)):
                        self._window.release()
            if not self._reader.cancelled():
                self._reader.result()
        finally:
            self._reader.cancel()
            for left in self._held:
                left.cancel()

    def stop(self) -> None:
        if not self._reader.done():
            self.stopped = True
            self._reader.cancel()

    async def _read(self) -> None:
        async for raw in self._incoming:
            places = min(WINDOW, 1 + len(raw) // PLACE_BYTES)
            for _ in range(places):
                await self._window.acquire()
            answer = asyncio.ensure_future(self._answer(raw))
            self._held[answer] = places
            if self._in_order:
                self._ready.put_nowait(answer)
            else:
                answer.add_done_callback(self._ready.put_nowait)
