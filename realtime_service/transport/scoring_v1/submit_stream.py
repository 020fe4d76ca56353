"""The submit batcher (group commit): requests that arrive during a round trip to the store share the next one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from protos.scoring.v1.scoring_pb2 import SubmitStreamResponse

#: Requests and bytes after which reading pauses until the next round trip, so that a chunk stays small.
CHUNK = 256
CHUNK_BYTES = 1024 * 1024
#: How long a client may take to read an answer before it is not read from. Most answers are taken at once.
MOMENT_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Held:
    """A request that was read, and whose bytes are held until `release`. `refusal`: why it was not taken; then `raw` is
    empty and `request_id` is its id."""

    raw: bytes
    release: Callable[[], None]
    refusal: Exception | None = None
    request_id: str = ""


class SubmitBatcher:
    """A stream (`streaming.Stoppable`) that answers chunk by chunk. `hold` takes each request as it is read; `store`
    turns failures into answers.

    Under load hundreds of requests share a round trip and a wait for Redis replication; a single request is not
    delayed. While an answer is not taken within a moment nothing is read, and what has been read is stored: a client
    that does not read answers keeps two of them here, and none of its requests.
    """

    def __init__(
        self,
        incoming: AsyncIterator[bytes],
        hold: Callable[[bytes], Held],
        store: Callable[[Sequence[Held]], Awaitable[SubmitStreamResponse]],
        write: Callable[[SubmitStreamResponse], Awaitable[None]],
    ) -> None:
        self.stopped = False
        self.taken = 0
        self._incoming = incoming
        self._hold = hold
        self._store = store
        self._write = write
        self._arrived: list[Held] = []
        self._storing = False
        #: An answer was not taken within a moment: its client does not read.
        self._stalled = False
        self._writing: asyncio.Future[None] | None = None
        self._arrival, self._room = asyncio.Event(), asyncio.Event()

    @property
    def busy(self) -> bool:
        return self._storing or bool(self._arrived) or self._unread

    async def run(self) -> None:
        self._reader = asyncio.create_task(self._read())
        # The end of reading wakes `_next_chunk`, too.
        self._reader.add_done_callback(lambda _: self._arrival.set())
        try:
            while chunk := await self._next_chunk():
                answer = await self._stored(chunk)
                # Its requests are in no budget any more, and the next chunk may come late, or never.
                del chunk
                await self._written()
                self._writing = asyncio.ensure_future(self._write(answer))
                self._writing.add_done_callback(self._ended_writing)
                await self._gather(self._writing)
            await self._written()
            if not self._reader.cancelled():
                self._reader.result()
        finally:
            self._reader.cancel()
            if self._writing:
                self._writing.cancel()
            for left in self._arrived:
                left.release()

    def stop(self) -> None:
        if not self._reader.done():
            self.stopped = True
            self._reader.cancel()

    async def _stored(self, chunk: Sequence[Held]) -> SubmitStreamResponse:
        self._storing = True
        try:
            return await self._store(chunk)
        finally:
            self._storing = False
            for it in chunk:
                it.release()

    @property
    def _unread(self) -> bool:
        return self._writing is not None and not self._writing.done()

    async def _gather(self, writing: "asyncio.Future[None]") -> None:
        """Read on while the transport takes an answer, so that the next chunk is large; no longer than a moment."""
        await asyncio.wait([writing], timeout=MOMENT_SECONDS)
        self._stalled = not writing.done()

    async def _written(self) -> None:
        """Wait until the transport has taken the last answer. Raises: its error."""
        if self._writing:
            await self._writing

    def _ended_writing(self, writing: asyncio.Future[None]) -> None:
        self._stalled = False
        self._room.set()
        if not writing.cancelled():
            # Seen here, and raised by `_written`: the stream may end before that.
            writing.exception()

    async def _next_chunk(self) -> list[Held]:
        """The requests that have arrived; empty at the end of the stream."""
        while not self._arrived and not self._reader.done():
            self._arrival.clear()
            await self._arrival.wait()
        chunk, self._arrived = self._arrived, []
        self._room.set()
        return chunk

    async def _read(self) -> None:
        size = 0
        async for raw in self._incoming:
            self.taken += 1
            size = size + len(raw) if self._arrived else len(raw)
            self._arrived.append(self._hold(raw))
            del raw
            self._arrival.set()
            while self._stalled or (self._arrived and (len(self._arrived) >= CHUNK or size >= CHUNK_BYTES)):
                self._room.clear()
                await self._room.wait()
