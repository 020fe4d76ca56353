"""Requests of one stream, answered concurrently within a window: a client that reads no answers is not read from."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from realtime_service.errors import ReplicaUnavailable

#: Slots of a stream for requests that are read and whose answers are not written.
WINDOW = 64
#: A request takes one slot, and one more for each so many bytes, so that large ones do not add up.
SLOT_BYTES = 64 * 1024

Answer = TypeVar("Answer")


class Stoppable(Protocol):
    """A stream. `stopped`: whether this replica ended it before the client had sent all requests."""

    stopped: bool

    async def run(self) -> None: ...

    def stop(self) -> None:
        """Read no further request, and end once those that were read are answered."""


class OpenStreams:
    """The open streams of this replica."""

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
        """Write the answer of every request, in the order of the requests or as they finish.

        A request keeps its slots until its answer is written, and `write` returns once the transport has taken it. So a
        client that does not read answers is not read from, and buffers stay small. `answer` turns failures into
        answers. Raises: ReplicaUnavailable if this replica closes, after the answers of the requests that it had read.
        """
        await self.run(_Stream(incoming, answer, write, in_order))

    async def run(self, stream: "Stoppable") -> None:
        """Run a stream until it has answered all requests. Raises: as `answer`, and the errors of the stream."""
        self._open.add(stream)
        try:
            await stream.run()
        finally:
            self._open.discard(stream)
        if stream.stopped:
            raise ReplicaUnavailable("this replica is closing; send what has no answer yet to another")

    def close(self) -> None:
        """Stop all streams: each reads no further request, and ends once those that were read are answered."""
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
        self._slots: dict[asyncio.Future[Answer], int] = {}
        self._ready: asyncio.Queue[asyncio.Future[Answer] | None] = asyncio.Queue()

    async def run(self) -> None:
        self._reader = asyncio.create_task(self._read())
        # The end of reading wakes the loop below, too.
        self._reader.add_done_callback(lambda _: self._ready.put_nowait(None))
        try:
            while self._slots or not self._reader.done():
                if (answer := await self._ready.get()) is not None:
                    await self._write(await answer)
                    for _ in range(self._slots.pop(answer)):
                        self._window.release()
            if not self._reader.cancelled():
                self._reader.result()
        finally:
            self._reader.cancel()
            for left in self._slots:
                left.cancel()

    def stop(self) -> None:
        if not self._reader.done():
            self.stopped = True
            self._reader.cancel()

    async def _read(self) -> None:
        async for raw in self._incoming:
            slots = min(WINDOW, 1 + len(raw) // SLOT_BYTES)
            for _ in range(slots):
                await self._window.acquire()
            answer = asyncio.ensure_future(self._answer(raw))
            self._slots[answer] = slots
            if self._in_order:
                self._ready.put_nowait(answer)
            else:
                answer.add_done_callback(self._ready.put_nowait)
