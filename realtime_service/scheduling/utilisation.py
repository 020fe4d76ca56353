"""The load of each lane: ρ = arrival rate × service time ÷ streams. It steers and alerts; it refuses nothing."""

import math
from collections.abc import Iterable

from shared_model.types import ServingPath

#: What came this many seconds ago counts about a third of what comes now.
MEMORY_SECONDS = 10.0


class Utilisation:
    """What callers asked for, answered or not. The busy share of a device that batches is 1 at any load.

    Times are monotonic seconds, told by the caller. `streams`: units the device runs at once.
    """

    def __init__(self, lanes: Iterable[ServingPath], streams: int = 1) -> None:
        self.streams = streams
        self._work = dict.fromkeys(lanes, 0.0)
        self._at = dict.fromkeys(self._work, 0.0)

    def arrived(self, lane: ServingPath, seconds: float, now: float) -> None:
        """Work of so many seconds of one stream came for a lane."""
        self._work[lane] = self._faded(lane, now) + seconds
        self._at[lane] = now

    def of(self, lane: ServingPath, now: float) -> float:
        """ρ of a lane over about the last `MEMORY_SECONDS`; 1 is all that the device can do."""
        return self._faded(lane, now) / MEMORY_SECONDS / self.streams

    def _faded(self, lane: ServingPath, now: float) -> float:
        return self._work[lane] * math.exp((self._at[lane] - now) / MEMORY_SECONDS)
