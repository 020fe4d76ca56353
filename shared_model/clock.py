"""Time as a dependency, so that tests control it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Times in seconds. `monotonic` orders events in one process; `wall` is UTC since the epoch."""

    def monotonic(self) -> float: ...

    def wall(self) -> float: ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class SimulatedClock:
    """A clock that moves only by `advance`."""

    def __init__(self, start: float = 1_000.0) -> None:
        self.now = start

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
