"""Outlier detection: replicas to which calls fail are ejected for a while. A state machine without a clock.

```
          3 failures in a row, or unreachable                ejection time over, and reachable
 trusted ─────────────────────────────────────────────▶ ejected ───────────────────────────────────▶ on trial
    ▲                                                      ▲                                            │  │
    │                                                      └───── first failure; twice the time ────────┘  │
    └───────────────────────────────────────── an answer ──────────────────────────────────────────────────┘
```

At most half of the replicas are ejected at a time: if more of them seem to fail, the fault may be on this side, and the
calls must go somewhere.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum

import grpc

from realtime_service.rpc import retryable

FAILURES = 3
#: Seconds of the first ejection; each in a row lasts twice as long, up to the second number. Jitter of a quarter keeps
#: routers that ejected a replica together from returning to it together.
FIRST_SECONDS, LONGEST_SECONDS = 1.0, 30.0
#: A call whose deadline passed within less than this many seconds is no sign of the replica's state.
SILENCE_SECONDS = 0.1


class Sign(StrEnum):
    """The state of a replica as the end of a call shows it. A replica that hangs answers no ping: it is unreachable."""

    ALIVE = "alive"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    NONE = "none"


#: The replica's own fault, or the connection's. With any other status it refused the request, and is alive.
_FAULTS = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DATA_LOSS,
}


def sign_of(code: grpc.StatusCode, details: str, seconds: float) -> Sign:
    """The sign of a call that ended with this status after so many seconds."""
    if retryable.hung(details):
        return Sign.UNREACHABLE
    # A burst of another caller ends calls like this; a replica that is gone is found by its connection.
    if code is grpc.StatusCode.CANCELLED or retryable.stream_refused(details):
        return Sign.NONE
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and retryable.by_transport(details):
        return Sign.FAILED if seconds >= SILENCE_SECONDS else Sign.NONE
    return Sign.FAILED if code in _FAULTS else Sign.ALIVE


@dataclass(slots=True)
class _Record:
    """`failures` and `ejections`: in a row; `until`: when an ejection is over, None without one."""

    failures: int = 0
    ejections: int = 0
    until: float | None = None


class OutlierDetector:
    """Times are monotonic seconds. `known`: the replicas that can serve, including this one if it can."""

    def __init__(self, draw: Callable[[], float]) -> None:
        """`draw`: uniform in [0, 1)."""
        self._draw = draw
        self._records: dict[str, _Record] = {}

    @property
    def ejected(self) -> frozenset[str]:
        return frozenset(replica for replica, record in self._records.items() if record.until is not None)

    def answered(self, replica: str) -> None:
        """Trust a replica that answered, unless it is ejected: then the call was sent before."""
        record = self._records.get(replica)
        if record and record.until is None:
            del self._records[replica]

    def failed(self, replica: str, sign: Sign, known: Collection[str], now: float) -> bool:
        """Count a failed call to a replica, or that it is unreachable. Returns whether this ejects it."""
        ejected = self.ejected
        if replica not in known or replica in ejected:
            return False
        record = self._records.setdefault(replica, _Record())
        record.failures = FAILURES if sign is Sign.UNREACHABLE else record.failures + 1
        if record.failures < FAILURES or len(ejected & set(known)) >= len(known) // 2:
            return False
        jitter = 0.75 + self._draw() / 2
        record.until = now + min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** min(record.ejections, 10)) * jitter
        record.ejections += 1
        return True

    def settle(self, known: Collection[str], reachable: Collection[str], now: float) -> None:
        """Put reachable replicas on trial whose ejection is over, and forget those that are gone. If so many are gone
        that more than half of the rest are ejected, the ejections that end first end early."""
        for replica, record in list(self._records.items()):
            if record.until is None or record.until <= now:
                if replica not in known:
                    del self._records[replica]
                elif record.until is not None and replica in reachable:
                    _on_trial(record)
        ejected = [record for replica, record in self._records.items() if record.until is not None and replica in known]
        ejected.sort(key=lambda record: record.until or 0.0)
        for record in ejected[: max(0, len(ejected) - len(known) // 2)]:
            _on_trial(record)


def _on_trial(record: _Record) -> None:
    record.until = None
    record.failures = FAILURES - 1
