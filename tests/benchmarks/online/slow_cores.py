"""How long the host slows the cores down while a load runs. Each latency that is measured then has that in it."""

import statistics
import threading
import time
from collections.abc import Sequence

_EVERY_SECONDS = 0.01
#: Steps of arithmetic that are timed, about 30 µs, and those before them, which fill the caches of a core.
_STEPS, _STEPS_BEFORE = 1_000, 200
#: A piece of work that takes so many times the usual was done by a slow core; what shares a core's units costs less.
_SLOW = 3.0


class SlowCores:
    """Times a piece of arithmetic each 10 ms, which takes 1 to 2 % of a core, from `start` to `stop`."""

    def __init__(self) -> None:
        self.pieces: list[float] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._time_pieces, name="slow-cores", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def share(self) -> float:
        """Of the time so far, in which cores were slow."""
        return slow_share(self.pieces)

    def _time_pieces(self) -> None:
        while not self._stopped.wait(_EVERY_SECONDS):
            _compute(_STEPS_BEFORE)
            # The thread's CPU time: waiting for a core does not count.
            began = time.thread_time()
            _compute(_STEPS)
            self.pieces.append(time.thread_time() - began)


def slow_share(pieces: Sequence[float]) -> float:
    """Share of equal pieces of work that took over three times the median; 0 without pieces."""
    usual = statistics.median(pieces or [0.0])
    return sum(piece > _SLOW * usual for piece in pieces) / max(1, len(pieces))


def _compute(steps: int) -> None:
    total = 0
    for step in range(steps):
        total += step
