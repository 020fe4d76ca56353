"""Threads that compute, one for each stream of a device, or the event loop itself for work that is shorter than two
hand-overs are worth. Results are delivered on the event loop."""

import asyncio
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

Found = TypeVar("Found")

#: Niceness of compute threads above the process's, so that the event loop, which needs a core for microseconds, does
#: not wait for one behind a batch of milliseconds.
YIELDING = 5

#: The work to call on a stream, the callback for its result, and the event loop of the callback.
_Work = tuple[Callable[[], Any], Callable[[Any], None], asyncio.AbstractEventLoop]


class ComputeThreads:
    """A pool without futures: a hand-over costs one queue and one wake-up of the event loop, because a request at
    batch 1 pays for all of it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"stream-{number}") for number in range(count)]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def submit(self, work: Callable[[], Found], done: Callable[[Found | Exception], None]) -> None:
        """Call `work` on a free stream, then `done` with its result or its exception, on the running loop."""
        self._work.put((work, done, asyncio.get_running_loop()))

    def close(self) -> None:
        """Wait for running work. Nothing may be submitted afterwards."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        # Of this thread alone: Linux takes a native thread id as a process id.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + YIELDING)
        # A function of its own, so that no variable keeps a finished batch alive while the stream waits for the next.
        while self._run_one(self._work.get()):
            pass

    def _run_one(self, taken: _Work | None) -> bool:
        """Returns False at the end of the work."""
        if taken is None:
            return False
        work, done, loop = taken
        loop.call_soon_threadsafe(done, _end_of(work))
        return True


def run_soon(work: Callable[[], Found], done: Callable[[Found | Exception], None]) -> None:
    """As `ComputeThreads.submit`, in the next turn of the event loop itself, which does nothing else meanwhile."""
    asyncio.get_running_loop().call_soon(lambda: done(_end_of(work)))


def _end_of(work: Callable[[], Found]) -> Found | Exception:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - an engine may raise anything; the callback gets it
        return error
