"""When a call that failed is made again by a client. Whether it may be is the rule in `retrying`.

| failure  | the next attempt                                       |
|----------|--------------------------------------------------------|
| not sent | after a pause that doubles                             |
| lost     | after the first such pause: only a moment after its    |
|          | calls does the channel know that a connection is gone, |
|          | and would send the next one the same way               |
| refused  | when the hint says                                     |

Never after the deadline, never beyond the attempts of the call, never without budget. Which replica an attempt meets is
the channel's choice: the next one that is healthy.
"""

import random
import time
from collections.abc import Callable, Sequence

import grpc

from realtime_service.client import errors
from realtime_service.rpc.retryable import Failure, RetryBudget, failure_of, may_repeat, retry_after

#: Seconds before the second attempt of a call that was not sent or lost; it doubles with each.
FIRST_PAUSE = 0.02


def pause(failures: Sequence[Failure], attempts: int, left: float, hint: float | None, draw: float) -> float | None:
    """Seconds until the next attempt, or None: there is none.

    `failures`: those of this call so far, the last one last; `attempts`: how many it may make; `left`: seconds of its
    deadline; `draw`: uniform in [0, 1), so that callers who failed together do not come back together.
    """
    last = failures[-1]
    if len(failures) >= attempts or not may_repeat(failures):
        return None
    if last is Failure.REFUSED:
        seconds = (hint or 0.0) * (1 + draw / 4)
    else:
        seconds = FIRST_PAUSE * 2 ** (failures.count(last) - 1) * (0.5 + draw)
    return seconds if seconds < left else None


class Attempts:
    """The attempts of one call, whatever makes them."""

    def __init__(
        self,
        attempts: int,
        seconds: float,
        budget: RetryBudget,
        now: Callable[[], float] = time.monotonic,
        service: str = "",
        began: float | None = None,
    ) -> None:
        """`attempts`: how many there may be; `seconds`: how long all of them may take together, from now or from when
        they `began`; `service`: the addresses, for people."""
        self._attempts = attempts
        self._seconds = seconds
        self._budget = budget
        self._service = service
        self._now = now
        self._deadline = (now() if began is None else began) + seconds
        self._failures: list[Failure] = []

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._deadline - self._now())

    def answered(self) -> None:
        self._budget.earn()

    def closed(self, error: ValueError | None = None) -> Exception:
        """What a call ends with that finds its client closed: Unavailable when it was made before, else the channel's
        own `error`."""
        if error and not self._failures:
            return error
        return errors.error_of(grpc.StatusCode.CANCELLED, "the client was closed", attempts=len(self._failures))

    def failed(self, error: grpc.RpcError) -> float:
        """Seconds until the next attempt. Raises: CallError, when there is none."""
        call_error = errors.read(error, self._service, self._seconds, len(self._failures) + 1)
        hint = retry_after(call_error.trailing_metadata())
        self._failures.append(failure_of(error.code(), error.details() or "", hint))
        seconds = pause(self._failures, self._attempts, self.left, hint, random.random())  # noqa: S311 - no secret
        if seconds is None or not self._budget.spend():
            raise call_error from None
        return seconds


class Retries:
    """What the calls of one client share: the attempts each may make, and the budget of all."""

    def __init__(self, attempts: int, service: str = "") -> None:
        """`service`: the addresses, for people. Raises: ValueError when there may not even be one attempt."""
        if attempts < 1:
            raise ValueError(f"attempts={attempts}: expected 1 or more")
        self._attempts = attempts
        self._budget = RetryBudget()
        self.service = service

    def begin(self, seconds: float, began: float | None = None) -> Attempts:
        return Attempts(self._attempts, seconds, self._budget, service=self.service, began=began)

    def close(self) -> None:
        """From now on no call is made again, those under way included."""
        self._budget.close()
