"""Whether a call that failed may be made again: a pure rule, and the budget that bounds it.

| failure                                    | again                                              |
|--------------------------------------------|----------------------------------------------------|
| not sent: no replica was reached           | yes                                                |
| lost: UNAVAILABLE, or CANCELLED by others  | once: a request that kills what it meets must not  |
|                                            | meet them all                                      |
| refused: RESOURCE_EXHAUSTED with a hint    | once                                               |
| anything else                              | never                                              |

Never after the deadline, never without budget. Every call may be repeated: scoring has no effect, and Submit is
deduplicated by its request id. The replica that a call is forwarded to next is chosen in `cluster.forwarder`; the
clients let gRPC make calls again (`client.channel`).
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import grpc

#: Trailer by which a service says when trying again is worth it.
RETRY_AFTER = "retry-after-ms"

Trailers = tuple[tuple[str, str | bytes], ...]

#: Repeated calls that may be made at first, and how many may be saved up.
FIRST_BUDGET, LARGEST_BUDGET = 10.0, 100.0
#: Each answered call adds this to the budget.
EARNED = 0.1

#: How the transport begins its complaint when a call never left this process. Were the words to change, such a call
#: would count as lost and be made again once; tests on real sockets watch these words and those below.
_NOT_SENT = ("connections to all backends failing", "failed to connect to all addresses", "errors resolving")
#: How it begins those of its own that come later.
_ENDED = ("Stream removed", "Deadline Exceeded")
_HUNG = "ping timeout"
#: Of a stream that HTTP/2 resets with REFUSED_STREAM: nothing of it was processed.
_REFUSED = "RST_STREAM with error code 7"


class Failure(StrEnum):
    NOT_SENT = "not sent"
    LOST = "lost"
    REFUSED = "refused"
    FINAL = "final"


#: How often one call may fail in this way and be made again.
_AGAIN = {Failure.NOT_SENT: math.inf, Failure.LOST: 1, Failure.REFUSED: 1, Failure.FINAL: 0}


def failure_of(code: grpc.StatusCode, details: str, hint: float | None) -> Failure:
    """`hint`: seconds after which the service wants to be asked again; None without one."""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Failure.FINAL if hint is None else Failure.REFUSED
    if code is grpc.StatusCode.UNAVAILABLE and hint is not None:
        # A model is being loaded there.
        return Failure.REFUSED
    if code is grpc.StatusCode.UNAVAILABLE and (details.startswith(_NOT_SENT) or stream_refused(details)):
        return Failure.NOT_SENT
    if code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}:
        return Failure.LOST
    return Failure.FINAL


def by_transport(details: str) -> bool:
    """Whether gRPC wrote this here, not the other side: it may name addresses that a caller must not see."""
    return details.startswith((*_NOT_SENT, *_ENDED))


def hung(details: str) -> bool:
    """Whether the call ended because the other side did not answer a ping."""
    return by_transport(details) and _HUNG in details


def stream_refused(details: str) -> bool:
    """Whether the other side took no further stream on this connection."""
    return _REFUSED in details


def trailers_of(error: grpc.RpcError) -> Trailers:
    pairs: Any = error.trailing_metadata() or ()
    return tuple((name, value) for name, value in pairs)


def retry_after(trailers: Trailers) -> float | None:
    """Seconds from the service's hint; None without one that can be read."""
    value = dict(trailers).get(RETRY_AFTER)
    return int(value) / 1000 if isinstance(value, str) and value.isascii() and value.isdigit() else None


def may_repeat(failures: Sequence[Failure]) -> bool:
    """Whether a call that has failed in these ways may be made again."""
    return all(failures.count(failure) <= _AGAIN[failure] for failure in failures)


class RetryBudget:
    """Bounds the calls that one replica sends again, so that a service in trouble is not called more for it.

    Of any number of calls, at most a tenth of those answered and 10 more are made again; at most 100 in a burst.
    """

    def __init__(self) -> None:
        self._left = FIRST_BUDGET

    def earn(self) -> None:
        self._left = min(LARGEST_BUDGET, self._left + EARNED)

    def spend(self) -> bool:
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
