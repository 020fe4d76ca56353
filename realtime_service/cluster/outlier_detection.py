"""Which replicas are left alone for a while, because calls to them fail: a state machine that is told the time.

```
          3 failures in a row, or it cannot be reached       its time is up, and it can be reached
 trusted ─────────────────────────────────────────────▶ ejected ───────────────────────────────────▶ on trial
    ▲                                                      ▲                                            │  │
    │                                                      └─── its first failure; for twice as long ───┘  │
    └───────────────────────────────────────── it answers ─────────────────────────────────────────────────┘
```

At most half of the replicas are ejected at a time: if more seem to fail, the fault may be on this side, and somebody
has to answer.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum

import grpc

from realtime_service.rpc import retryable

FAILURES = 3
#: Seconds of the first ejection; each in a row lasts twice as long. A quarter more or less, by chance, so that those
#: who left a replica together do not come back to it together.
FIRST_SECONDS, LONGEST_SECONDS = 1.0, 30.0
#: A call that ended with its deadline, unanswered for less than this many seconds, says nothing of the replica.
SILENCE_SECONDS = 0.1


class Sign(StrEnum):
    """What the end of a call says of the replica it was sent to. One that hangs answers no ping: it is unreachable."""

    ALIVE = "alive"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    NONE = "none"


#: The replica's own fault, or the connection's. With any other status it refused the request, and is alive.
_FAULTS = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DATA_LOSS,
}


def sign_of(code: grpc.StatusCode, details: str, seconds: float) -> Sign:
    """Of a call that ended so, after so many seconds."""
    if retryable.hung(details):
        return Sign.UNREACHABLE
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
    """Times are monotonic seconds. `known` are the replicas that can serve, the one that sends among them if it can."""

    def __init__(self, draw: Callable[[], float]) -> None:
        """`draw`: uniform in [0, 1)."""
        self._draw = draw
        self._records: dict[str, _Record] = {}

    @property
    def ejected(self) -> frozenset[str]:
        return frozenset(replica for replica, record in self._records.items() if record.until is not None)

    def answered(self, replica: str) -> None:
        """It is alive. Of one that is ejected this says nothing: the call was sent before."""
        record = self._records.get(replica)
        if record and record.until is None:
            del self._records[replica]

    def failed(self, replica: str, sign: Sign, known: Collection[str], now: float) -> bool:
        """A call to it failed, or it cannot be reached. Returns whether it is ejected for that."""
        ejected = self.ejected
        if replica not in known or replica in ejected:
            return False
        record = self._records.setdefault(replica, _Record())
        record.failures = FAILURES if sign is Sign.UNREACHABLE else record.failures + 1
        if record.failures < FAILURES or len(ejected & set(known)) >= len(known) // 2:
            return False
        record.until = now + min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** min(record.ejections, 10)) * self._jitter()
        record.ejections += 1
        return True

    def settle(self, known: Collection[str], reachable: Collection[str], now: float) -> None:
        """Take back whose time is up and who can be reached, and forget who is gone. Where so many have gone that more
        than half of the rest are ejected, those whose time is up first come back early."""
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

    def _jitter(self) -> float:
        return 0.75 + self._draw() / 2


def _on_trial(record: _Record) -> None:
    record.until = None
    record.failures = FAILURES - 1
