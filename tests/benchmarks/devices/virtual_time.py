"""Time that passes only where a thread says so, and travels with what threads hand each other.

Each thread has its own time. A thread that takes an item waits for the time at which it was put, and one that puts an
item into a full queue for the time at which room was made. So a run takes the same virtual time however its threads
happen to be scheduled, and no real time to wait for.
"""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from batch_job.scoring import prefetch


class VirtualTime(threading.local):
    """Seconds of the calling thread."""

    now = 0.0

    def work(self, seconds: float) -> None:
        self.now += seconds

    def wait_until(self, time: float) -> None:
        self.now = max(self.now, time)


@contextmanager
def in_prefetching(time: VirtualTime) -> Iterator[None]:
    """Queues between the tokenising thread and the engine's keep virtual time."""

    class Timed(queue.Queue[Any]):
        def _init(self, maxsize: int) -> None:
            super()._init(maxsize)
            self._taken: list[float] = []
            self._count = 0

        # Both are called with the queue's lock held, when there is room, or an item.
        def _put(self, item: Any) -> None:
            if self._count >= self.maxsize:
                time.wait_until(self._taken[self._count - self.maxsize])
            self._count += 1
            super()._put((time.now, item))

        def _get(self) -> Any:
            put, item = super()._get()
            time.wait_until(put)
            self._taken.append(time.now)
            return item

    with mock.patch.object(prefetch, "queue", SimpleNamespace(Queue=Timed, Full=queue.Full)):
        yield
