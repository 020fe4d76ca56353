"""The utilisation of each lane (offered load): ρ = arrival rate × service time ÷ streams. Routing and alerts use it.

Admission control does not.
"""

import math
from collections.abc import Iterable

from shared_model.types import ServingPath

#: Time constant of the average: work that arrived this many seconds ago counts about a third.
MEMORY_SECONDS = 10.0


class Utilisation:
    """Counts the work that callers ask for, answered or refused, because a device that batches is always busy.

    Times are monotonic seconds, given by the caller. `streams`: batches the device runs at once.
    """

    def __init__(self, lanes: Iterable[ServingPath], streams: int = 1) -> None:
        self.streams = streams
        self._work = dict.fromkeys(lanes, 0.0)
        self._at = dict.fromkeys(self._work, 0.0)

    def arrived(self, lane: ServingPath, seconds: float, now: float) -> None:
        """Count work of so many seconds of one stream for a lane."""
        self._work[lane] = self._decayed(lane, now) + seconds
        self._at[lane] = now

    def of(self, lane: ServingPath, now: float) -> float:
        """ρ of a lane over about the last `MEMORY_SECONDS`; 1 is the capacity of the device."""
        return self._decayed(lane, now) / MEMORY_SECONDS / self.streams

    def _decayed(self, lane: ServingPath, now: float) -> float:
        return self._work[lane] * math.exp((self._at[lane] - now) / MEMORY_SECONDS)
