"""When a call that was sent to another replica is sent to one more: the bookkeeping, without the sending.

Once nothing has come for longer than 95 % of the recent calls on its path took, and for a bounded share of the calls,
so that a service that is slow because it is busy is not made busier.
"""

import math
from collections import defaultdict, deque

from shared_model.types import ServingPath

#: Whatever operators ask for, no more than this share of the calls.
LARGEST_SHARE = 0.02
#: How many may be saved up.
LARGEST_BURST = 10.0
#: Calls on a path that are remembered, and how many it takes to know what is slow.
REMEMBERED, ENOUGH = 200, 40


class Hedges:
    """Of any number of calls, no more than `share` are sent twice."""

    def __init__(self) -> None:
        self._left = 0.0
        self._took: defaultdict[ServingPath, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))

    def answered(self, path: ServingPath, seconds: float) -> None:
        """A call got its answer after so many seconds."""
        self._took[path].append(seconds)

    def wait(self, path: ServingPath, share: float) -> float | None:
        """A call is sent. Seconds without an answer after which it may be sent twice; None: not at all."""
        self._left = min(LARGEST_BURST, self._left + min(share, LARGEST_SHARE))
        took = self._took[path]
        if share <= 0.0 or self._left < 1.0 or len(took) < ENOUGH:
            return None
        return sorted(took)[math.ceil(0.95 * len(took)) - 1]

    def spend(self) -> bool:
        """Whether one call may be sent twice now; it then counts."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
