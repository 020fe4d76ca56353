"""The log of refusals: a line for each reason and second, and how many more were like it."""

import logging
from collections import Counter

import grpc

from realtime_service.errors import Status
from realtime_service.telemetry import scope
from shared_model.clock import Clock, SystemClock

Code = grpc.StatusCode

PERIOD_SECONDS = 1.0
#: Reasons of a period that have a line; callers can make more up.
MOST_REASONS = 16
_REFUSED = frozenset({Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE, Code.UNAUTHENTICATED, Code.PERMISSION_DENIED})
_WITHOUT_DIGITS = str.maketrans("", "", "0123456789")
_CONTROLS = {code: None for code in [*range(32), 127]}

log = logging.getLogger(__name__)


class RefusalLog:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end = 0.0
        # By reason: refusals of this period, and those since the reason's last line, which the next one tells.
        self._seen: Counter[str] = Counter()
        self._untold: Counter[str] = Counter()

    def note(self, status: Status, caller: str = "") -> None:
        """The end of a call, or of a request of a stream; logged if it is a refusal. `caller`: where no task works for
        the request yet."""
        if status.code not in _REFUSED:
            return
        # Without the hint, and without numbers, which differ from one refusal to the next.
        why = status.message.partition("; retry in ")[0]
        reason = why.translate(_WITHOUT_DIGITS)
        now = self._clock.monotonic()
        if now >= self._end:
            self._seen, self._end = Counter(), now + PERIOD_SECONDS
        if reason not in self._seen and len(self._seen) >= MOST_REASONS:
            return
        self._seen[reason] += 1
        if self._seen[reason] == 1:
            self._tell(status, why, caller, self._untold.pop(reason, 0))
        else:
            if reason not in self._untold and len(self._untold) >= MOST_REASONS:
                # The oldest: callers can make up reasons that never come again.
                del self._untold[next(iter(self._untold))]
            self._untold[reason] += 1

    def _tell(self, status: Status, why: str, caller: str, more: int) -> None:
        ids = {"caller": caller, **scope.ids()} if caller else scope.ids()
        named = ", ".join(f"{name} {value}" for name, value in ids.items()).translate(_CONTROLS)
        like_it = f"; {more} more like it before" if more else ""
        extra = {"code": status.code.name, "reason": why, "more": more, **ids}
        log.info("refused: %s (%s)%s", why.translate(_CONTROLS), named, like_it, extra={"fields": extra})


#: Of this process.
REFUSALS = RefusalLog(SystemClock())
