"""The work under way at each worker of one service, in memory that they share: heartbeats come too seldom to deal the
calls of one connection to all cores of a host."""

import itertools
import mmap
import os
from pathlib import Path

from realtime_service.routing.snapshot import Replica
from realtime_service.settings import SERVED
from shared_model.types import ServingPath

#: Of each served lane: real-time requests, which go first, and others.
_QUEUES = 2 * len(SERVED)
_NUMBER_BYTES, _ID_BYTES = 8, 128


def create(path: Path, workers: int) -> None:
    """Make the file in which `workers` tell each other their work."""
    path.touch(mode=0o600, exist_ok=False)
    os.truncate(path, _bytes(workers))


class WorkerLoads:
    """Seconds of device time, by the worker that computes and by the one that a request came to. The latter counts it,
    so each number has one writer. `index`: of this worker; `workers`: how many share the file."""

    def __init__(self, path: Path, workers: int, index: int) -> None:
        self._workers, self._index = workers, index
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _bytes(workers))
        numbers = workers * workers * _QUEUES * _NUMBER_BYTES
        self._seconds = memoryview(self._memory)[:numbers].cast("d")
        self._ids = memoryview(self._memory)[numbers:]
        # Each request that comes to this worker asks for one.
        self._own = {(path, urgent): self._lane(index, path, urgent) for path in SERVED for urgent in (True, False)}

    def announce(self, replica: str) -> None:
        """Tell the other workers the name of this one, which has no work yet."""
        # A worker that ended before this one took its place may have left some.
        for worker, queue in itertools.product(range(self._workers), range(_QUEUES)):
            self._seconds[self._place(worker, self._index, queue)] = 0.0
        self._ids[self._index * _ID_BYTES :][:_ID_BYTES] = _padded(replica)

    def own(self, path: ServingPath, real_time: bool) -> "WorkerLane":
        """The lane of this worker, to count what comes to it and is computed here."""
        return self._own[path, real_time]

    def attach(self, replica: Replica) -> None:
        """Let the lanes of another replica be read here, if it is a worker of this service."""
        name = _padded(replica.id)
        for worker in range(self._workers):
            if worker != self._index and self._ids[worker * _ID_BYTES :][:_ID_BYTES] == name:
                for lane in replica.options:
                    lane.worker = self._lane(worker, lane.path, real_time=False)
                    if lane.real_time:
                        lane.real_time.worker = self._lane(worker, lane.path, real_time=True)

    def _lane(self, worker: int, path: ServingPath, real_time: bool) -> "WorkerLane":
        queue = 2 * SERVED.index(path) + (not real_time)
        before = [self._place(worker, origin, each) for origin in range(self._workers) for each in range(queue + 1)]
        return WorkerLane(self._seconds, before, self._place(worker, self._index, queue))

    def _place(self, worker: int, origin: int, queue: int) -> int:
        return (worker * self._workers + origin) * _QUEUES + queue


class WorkerLane:
    """One lane of one worker, as requests of one urgency see it."""

    def __init__(self, seconds: "memoryview[float]", before: list[int], own: int) -> None:
        """`before`: the places of work that goes first; `own`: the place of work that came to this worker."""
        self._seconds = seconds
        self._before = before
        self._own = own

    def ahead(self) -> float:
        """Seconds of the work under way that goes before a new request, begun work included."""
        return sum([self._seconds[place] for place in self._before])

    def add(self, seconds: float) -> None:
        """Count work that begins to wait here; negative `seconds` when it has ended."""
        self._seconds[self._own] += seconds


def _padded(replica: str) -> bytes:
    """Host names have 64 bytes at most."""
    return replica.encode()[:_ID_BYTES].ljust(_ID_BYTES, b"\0")


def _bytes(workers: int) -> int:
    return workers * (workers * _QUEUES * _NUMBER_BYTES + _ID_BYTES)
