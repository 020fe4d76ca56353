"""Threads that compute, one for each stream of a device. What they find out comes back on the event loop."""

import asyncio
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

Found = TypeVar("Found")

#: Nice value that streams add to the process's. The event loop needs a core for a moment at a time, and must not wait
#: for one behind what computes for milliseconds.
YIELDING = 5

#: What to call on a stream, and then with what it found, on which loop.
_Work = tuple[Callable[[], Any], Callable[[Any], None], asyncio.AbstractEventLoop]


class ComputeThreads:
    """A pool without the ceremony: handing over costs one queue and one wake-up of the loop, no future and no chain of
    callbacks, because a request at batch 1 pays for it in full."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"stream-{number}") for number in range(count)]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def submit(self, work: Callable[[], Found], done: Callable[[Found | Exception], None]) -> None:
        """Call `work` on a stream that is free, then `done` with what it returned or raised, on the running loop."""
        self._work.put((work, done, asyncio.get_running_loop()))

    def close(self) -> None:
        """Wait for what runs. Nothing may be submitted any more."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        # The thread's own: the kernel's id of a thread is a process id to it.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + YIELDING)
        # Nothing of a unit stays in a variable here while the stream waits for the next.
        while self._run_one(self._work.get()):
            pass

    def _run_one(self, taken: _Work | None) -> bool:
        """False when there is no more."""
        if taken is None:
            return False
        work, done, loop = taken
        try:
            found = work()
        except Exception as error:  # noqa: BLE001 - an engine may raise anything; it is told, not swallowed
            found = error
        loop.call_soon_threadsafe(done, found)
        return True
