"""Writes to a stream that takes one message at a time: entries that arrive during a write share the next message."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

#: Most entries of a message, so that it stays below the size that a replica accepts.
TOGETHER = 32

Entry = TypeVar("Entry")


class WriteCoalescer(Generic[Entry]):
    def __init__(self, write: Callable[[Sequence[Entry]], Awaitable[None]]) -> None:
        self._write = write
        self._waiting = deque[Entry]()
        self._news = asyncio.Event()
        self._closed = False

    def put(self, entry: Entry) -> None:
        self._waiting.append(entry)
        self._news.set()

    def close(self) -> None:
        """End `run` once all entries are written."""
        self._closed = True
        self._news.set()

    async def run(self) -> None:
        """Write until closed and empty. Raises: the errors of `write`."""
        while self._waiting or not self._closed:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                await self._write([self._waiting.popleft() for _ in range(min(TOGETHER, len(self._waiting)))])
