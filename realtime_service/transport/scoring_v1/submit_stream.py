"""Work that is handed in on one stream: whatever has come since the last round trip to the store goes with the next."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from protos.scoring.v1.scoring_pb2 import SubmitStreamResponse

#: Requests, and bytes of them, that are read and go to the store together. Who sends more waits meanwhile.
CHUNK = 256
CHUNK_BYTES = 1024 * 1024


class SubmitBatcher:
    """A stream (`streams.Stoppable`) that answers chunk by chunk. `store` turns failures into answers.

    Under load a round trip, and a wait for replicas, is shared by hundreds; a lonely request does not wait for company.
    The next chunk is taken when the answers to the last are written: who does not read them is not read from.
    """

    def __init__(
        self,
        incoming: AsyncIterator[bytes],
        store: Callable[[Sequence[bytes]], Awaitable[SubmitStreamResponse]],
        write: Callable[[SubmitStreamResponse], Awaitable[None]],
    ) -> None:
        self.stopped = False
        self._incoming = incoming
        self._store = store
        self._write = write
        self._arrived: list[bytes] = []
        self._news, self._room = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        self._reader = asyncio.create_task(self._read())
        # Also the end of reading is news.
        self._reader.add_done_callback(lambda _: self._news.set())
        try:
            while chunk := await self._next_chunk():
                await self._write(await self._store(chunk))
            if not self._reader.cancelled():
                self._reader.result()
        finally:
            self._reader.cancel()

    def stop(self) -> None:
        if not self._reader.done():
            self.stopped = True
            self._reader.cancel()

    async def _next_chunk(self) -> list[bytes]:
        """What has arrived; empty when nothing more will."""
        while not self._arrived and not self._reader.done():
            self._news.clear()
            await self._news.wait()
        chunk, self._arrived = self._arrived, []
        self._room.set()
        return chunk

    async def _read(self) -> None:
        size = 0
        async for raw in self._incoming:
            size = size + len(raw) if self._arrived else len(raw)
            self._arrived.append(raw)
            self._news.set()
            if len(self._arrived) >= CHUNK or size >= CHUNK_BYTES:
                self._room.clear()
                await self._room.wait()
