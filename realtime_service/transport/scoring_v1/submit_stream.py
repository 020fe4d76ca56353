"""The submit batcher (group commit): requests that arrive during a round trip to the store share the next one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from protos.scoring.v1.scoring_pb2 import SubmitStreamResponse

#: Requests and bytes after which reading pauses until the next round trip, so that a chunk stays small.
CHUNK = 256
CHUNK_BYTES = 1024 * 1024


class SubmitBatcher:
    """A stream (`streaming.Stoppable`) that answers chunk by chunk. `store` turns failures into answers.

    Under load hundreds of requests share a round trip and a wait for Redis replication; a single request is not
    delayed. The next chunk is taken once the answers of the last are written, so that a client that does not read
    answers is not read from.
    """

    def __init__(
        self,
        incoming: AsyncIterator[bytes],
        store: Callable[[Sequence[bytes]], Awaitable[SubmitStreamResponse]],
        write: Callable[[SubmitStreamResponse], Awaitable[None]],
    ) -> None:
        self.stopped = False
        self.taken = 0
        self._incoming = incoming
        self._store = store
        self._write = write
        self._arrived: list[bytes] = []
        self._storing = False
        self._arrival, self._room = asyncio.Event(), asyncio.Event()

    @property
    def busy(self) -> bool:
        return self._storing or bool(self._arrived)

    async def run(self) -> None:
        self._reader = asyncio.create_task(self._read())
        # The end of reading wakes `_next_chunk`, too.
        self._reader.add_done_callback(lambda _: self._arrival.set())
        try:
            while chunk := await self._next_chunk():
                self._storing = True
                await self._write(await self._store(chunk))
                self._storing = False
            if not self._reader.cancelled():
                self._reader.result()
        finally:
            self._reader.cancel()

    def stop(self) -> None:
        if not self._reader.done():
            self.stopped = True
            self._reader.cancel()

    async def _next_chunk(self) -> list[bytes]:
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
            self._arrived.append(raw)
            self._arrival.set()
            if len(self._arrived) >= CHUNK or size >= CHUNK_BYTES:
                self._room.clear()
                await self._room.wait()
