"""Threads that compute, one for each stream of a device. What they find out comes back on the event loop."""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

Found = TypeVar("Found")


class Streams:
    """A pool without the ceremony: handing over costs one queue and one wake-up of the loop, no future and no chain of
    callbacks, because a request at batch 1 pays for it in full."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"stream-{number}") for number in range(count)]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def submit(self, work: Callable[[], Found], done: Callable[[Found | Exception], None]) -> None:
        """Call `work` on a stream that is free, then `done` with what it returned or raised, on the running loop."""
        loop = asyncio.get_running_loop()

        def run() -> None:
            try:
                found: Found | Exception = work()
            except Exception as error:  # noqa: BLE001 - an engine may raise anything; it is told, not swallowed
                found = error
            loop.call_soon_threadsafe(done, found)

        self._work.put(run)

    def close(self) -> None:
        """Wait for what runs. Nothing may be submitted any more."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while work := self._work.get():
            work()
