"""Whether a call that failed is made again, and when: a pure rule, and the budget that bounds it.

| failure                                    | again                                              |
|--------------------------------------------|----------------------------------------------------|
| not sent: no replica was ready             | yes, after a pause that doubles                    |
| lost: UNAVAILABLE, or CANCELLED by others  | once, at once: a request that kills what it meets  |
|                                            | must not meet them all                             |
| refused: RESOURCE_EXHAUSTED with a hint    | once, when the hint says                           |
| anything else                              | never                                              |

Never after the deadline, never beyond the attempts of the call, never without budget. Every call may be repeated:
scoring has no effect, and Submit is deduplicated by its request id. Which replica an attempt meets is the channel's
choice: the next one that is healthy.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum

import grpc

from realtime_service.client import errors

#: Seconds before the second attempt of a call that was not sent; it doubles with each.
FIRST_PAUSE = 0.02
#: Repeated calls a new client may make, and how many it may save up.
FIRST_BUDGET, LARGEST_BUDGET = 10.0, 100.0
#: What each answered call adds to the budget.
EARNED = 0.1

#: How the transport begins its complaint when a call never left this process. Were the words to change, such a call
#: would count as lost and be made again once; a test on a real socket watches them.
_NOT_SENT = ("connections to all backends failing", "failed to connect to all addresses", "errors resolving")


class Failure(StrEnum):
    NOT_SENT = "not sent"
    LOST = "lost"
    REFUSED = "refused"
    FINAL = "final"


#: How often one call may fail in this way and be made again. What was not sent is bounded by `attempts` alone.
_AGAIN = {Failure.NOT_SENT: math.inf, Failure.LOST: 1, Failure.REFUSED: 1, Failure.FINAL: 0}


def failure_of(code: grpc.StatusCode, details: str, hint: float | None) -> Failure:
    """`hint`: seconds after which the service wants to be asked again; None without one."""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Failure.FINAL if hint is None else Failure.REFUSED
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith(_NOT_SENT):
        return Failure.NOT_SENT
    if code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}:
        return Failure.LOST
    return Failure.FINAL


def pause(failures: Sequence[Failure], attempts: int, left: float, hint: float | None, draw: float) -> float | None:
    """Seconds until the next attempt, or None: there is none.

    `failures`: those of this call so far, the last one last; `attempts`: how many it may make; `left`: seconds of its
    deadline; `draw`: uniform in [0, 1), so that callers who failed together do not come back together.
    """
    last = failures[-1]
    if len(failures) >= attempts or failures.count(last) > _AGAIN[last]:
        return None
    seconds = 0.0
    if last is Failure.NOT_SENT:
        seconds = FIRST_PAUSE * 2 ** (failures.count(last) - 1) * (0.5 + draw)
    elif last is Failure.REFUSED:
        seconds = (hint or 0.0) * (1 + draw / 4)
    return seconds if seconds < left else None


class Budget:
    """Bounds the repeated calls of one client, so that a service in trouble is not called more for it.

    Of any number of calls, at most a tenth of those answered and 10 more are made again; at most 100 in a burst.
    """

    def __init__(self) -> None:
        self._left = FIRST_BUDGET
        self._lock = threading.Lock()

    def earn(self) -> None:
        with self._lock:
            self._left = min(LARGEST_BUDGET, self._left + EARNED)

    def spend(self) -> bool:
        with self._lock:
            if self._left < 1.0:
                return False
            self._left -= 1.0
            return True

    def close(self) -> None:
        """From now on nothing is left, and nothing is earned."""
        with self._lock:
            self._left = -math.inf


class Attempts:
    """The attempts of one call, whatever makes them."""

    def __init__(
        self, attempts: int, seconds: float, budget: Budget, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`attempts`: how many there may be; `seconds`: how long all of them may take together."""
        self._attempts = attempts
        self._budget = budget
        self._now = now
        self._deadline = now() + seconds
        self._failures: list[Failure] = []

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._deadline - self._now())

    def answered(self) -> None:
        self._budget.earn()

    def failed(self, error: grpc.RpcError) -> float:
        """Seconds until the next attempt. Raises: CallError, when there is none."""
        call_error = errors.read(error, len(self._failures) + 1)
        hint = errors.retry_after(call_error.trailing_metadata())
        self._failures.append(failure_of(call_error.code(), call_error.details(), hint))
        seconds = pause(self._failures, self._attempts, self.left, hint, random.random())  # noqa: S311 - no secret
        if seconds is None or not self._budget.spend():
            raise call_error from None
        return seconds


class Retries:
    """What the calls of one client share: the attempts each may make, and the budget of all."""

    def __init__(self, attempts: int) -> None:
        """Raises: ValueError when there may not even be one attempt."""
        if attempts < 1:
            raise ValueError(f"attempts={attempts}: expected 1 or more")
        self._attempts = attempts
        self._budget = Budget()

    def begin(self, seconds: float) -> Attempts:
        return Attempts(self._attempts, seconds, self._budget)

    def close(self) -> None:
        """From now on no call is made again, those under way included."""
        self._budget.close()
