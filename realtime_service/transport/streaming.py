"""Requests of one stream, answered concurrently within a window: a client that reads no answers is not read from."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from realtime_service.errors import DeadlineExpired, Overloaded, ReplicaUnavailable
from realtime_service.routing.inflight import RETRY_SECONDS

#: Slots of a stream for requests that are read and whose answers are not written.
WINDOW = 64
#: A request takes one slot, and one more for each so many bytes, so that large ones do not add up.
SLOT_BYTES = 64 * 1024

Answer = TypeVar("Answer")


class Window:
    """Slots of a stream; a request takes one, and one more for each `slot_bytes` of it. One task takes them."""

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self._slots = self._free = slots
        self._slot_bytes = slot_bytes
        self._released = asyncio.Event()

    async def take(self, size: int) -> int:
        """Wait until a request of so many bytes has its slots; returns their number."""
        await self.has_free(min(self._slots, 1 + size // self._slot_bytes))
        return self.claim(size)

    async def has_free(self, slots: int = 1) -> None:
        """Wait until so many slots are free."""
        while self._free < slots:
            self._released.clear()
            await self._released.wait()

    def claim(self, size: int) -> int:
        """Take the slots of a request of so many bytes, more than are free if it must be; returns their number."""
        slots = min(self._slots, 1 + size // self._slot_bytes)
        self._free -= slots
        return slots

    def release(self, slots: int) -> None:
        self._free += slots
        self._released.set()


class Stoppable(Protocol):
    """A stream. `stopped`: whether this replica ended it before the client had sent all requests. `taken`: requests
    read so far; `busy`: whether any of them has no answer yet."""

    stopped: bool
    taken: int

    @property
    def busy(self) -> bool: ...

    async def run(self) -> None: ...

    def stop(self) -> None:
        """Read no further request, and end once those that were read are answered."""


class OpenStreams:
    """The open streams of this replica. `idle_seconds`: how long nothing may happen on a stream of requests, or of
    results; `unread_seconds`: how long its client may not read an answer; 0: for ever."""

    def __init__(self, idle_seconds: float = 0.0, unread_seconds: float = 0.0) -> None:
        self._open: set[Stoppable] = set()
        self._idle_seconds = idle_seconds
        self._unread_seconds = unread_seconds

    @contextlib.asynccontextmanager
    async def ending_idle(self) -> AsyncIterator[Callable[[], None]]:
        """End a stream of results once it was idle for `idle_seconds`. Yields a function to call whenever something has
        happened. Raises: ReplicaUnavailable, on which clients ask again for what is still open."""
        loop, seconds = asyncio.get_running_loop(), self._idle_seconds
        try:
            async with asyncio.timeout(seconds or None) as idle:
                yield lambda: idle.reschedule(loop.time() + seconds) if seconds else None
        except TimeoutError as error:
            if not idle.expired():
                raise
            raise ReplicaUnavailable(f"nothing happened on this stream for {seconds:g} s; ask again") from error

    async def answer(
        self,
        incoming: AsyncIterator[bytes],
        answer: Callable[[bytes], Awaitable[Answer]],
        write: Callable[[Answer], Awaitable[None]],
        *,
        in_order: bool,
    ) -> None:
        """Write the answer of every request, in the order of the requests or as they finish.

        A request keeps its slots until its answer is written, and `write` returns once the transport has taken it. So a
        client that does not read answers is not read from, and buffers stay small. `answer` turns failures into
        answers. Raises: ReplicaUnavailable if this replica closes, after the answers of the requests that it had read;
        DeadlineExpired after an idle time; Overloaded where an answer stays unread.
        """
        await self.run(_Stream(incoming, answer, self.bounded(write), in_order))

    def bounded(self, write: Callable[[Answer], Awaitable[None]]) -> Callable[[Answer], Awaitable[None]]:
        """`write`, which ends its stream where an answer stays unread: those behind it are in no budget. Raises:
        Overloaded."""

        async def writing(answer: Answer) -> None:
            try:
                async with asyncio.timeout(self._unread_seconds or None) as unread:
                    await write(answer)
            except TimeoutError as error:
                if not unread.expired():
                    raise
                why = f"an answer on this stream was not read for {self._unread_seconds:g} s"
                raise Overloaded(why, RETRY_SECONDS) from error

        return writing

    async def run(self, stream: "Stoppable", idle_ends: bool = True) -> None:
        """Run a stream until it has answered all requests. Raises: as `answer`, and the errors of the stream."""
        idle = _IdleWatch(stream, self._idle_seconds if idle_ends else 0.0)
        self._open.add(stream)
        try:
            await stream.run()
        finally:
            idle.close()
            self._open.discard(stream)
        if idle.over:
            raise DeadlineExpired(f"nothing happened on this stream for {self._idle_seconds:.0f} s; open another")
        if stream.stopped:
            raise ReplicaUnavailable("this replica is closing; send what has no answer yet to another")

    def close(self) -> None:
        """Stop all streams: each reads no further request, and ends once those that were read are answered."""
        for stream in self._open:
            stream.stop()


class _IdleWatch:
    """Stops a stream on which nothing has happened for `seconds`, at the latest after twice as long. `over`: whether it
    did. A stream pays for it once in that time, not for each request."""

    def __init__(self, stream: Stoppable, seconds: float) -> None:
        self.over = False
        self._stream = stream
        self._seconds = seconds
        self._timer = self._next()

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()

    def _next(self) -> asyncio.TimerHandle | None:
        if not self._seconds:
            return None
        return asyncio.get_running_loop().call_later(self._seconds, self._look, self._stream.taken)

    def _look(self, taken: int) -> None:
        if self._stream.busy or self._stream.taken != taken:
            self._timer = self._next()
        else:
            self.over = True
            self._stream.stop()


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
        self.taken = 0
        self._window = Window(WINDOW, SLOT_BYTES)
        self._slots: dict[asyncio.Future[Answer], int] = {}
        self._ready: asyncio.Queue[asyncio.Future[Answer] | None] = asyncio.Queue()

    @property
    def busy(self) -> bool:
        return bool(self._slots)

    async def run(self) -> None:
        self._reader = asyncio.create_task(self._read())
        # The end of reading wakes the loop below, too.
        self._reader.add_done_callback(lambda _: self._ready.put_nowait(None))
        try:
            while self._slots or not self._reader.done():
                if (answer := await self._ready.get()) is not None:
                    await self._write(await answer)
                    self._window.release(self._slots.pop(answer))
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
        """Each request that is read is answered at once: one that waited for slots, as long as its client likes, would
        be in memory and in no budget."""
        async for raw in self._incoming:
            self.taken += 1
            slots = self._window.claim(len(raw))
            answer = asyncio.ensure_future(self._answer(raw))
            self._slots[answer] = slots
            if self._in_order:
                self._ready.put_nowait(answer)
            else:
                answer.add_done_callback(self._ready.put_nowait)
            del raw
            await self._window.has_free()
