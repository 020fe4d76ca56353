"""Plans of a load generator: open loop, independent of the answers, or closed loop, paced by them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

SCORE = "/scoring.v1.ScoringService/Score"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Open loop where `due` (seconds from the start) is given, else closed: `in_flight` calls at any time, until
    `seconds` are over or, with `once`, each text has been sent.

    Texts are sent in turn, one a call, or, where they are given, `messages`: whole requests, in base64. `priority` is
    the name of a scoring.v1.Priority. `timeout_ms` is the request's own and, unless the caller is `patient`, the gRPC
    deadline; 0 means none. `token` proves who calls; empty for an anonymous caller, whom the service knows by its
    address: `source`, where it is given.
    """

    address: str
    texts: Sequence[str] = ()
    messages: Sequence[str] = ()
    seconds: float
    due: Sequence[float] | None = None
    in_flight: int = 1
    once: bool = False
    priority: str = "PRIORITY_UNSPECIFIED"
    timeout_ms: int = 0
    patient: bool = False
    method: str = SCORE
    token: str = ""
    source: str = ""


class Pacer(Protocol):
    """When to send. Times are seconds from the start."""

    def next_due(self, now: float, in_flight: int) -> float | None:
        """Due time of the next call; None while it depends on an answer, or after the last call."""

    def over(self, now: float) -> bool:
        """Whether no more calls will be due."""

    def rest(self) -> Iterable[float]:
        """When the calls are due that have not been sent, whatever the answers do."""


class Open:
    def __init__(self, due: Sequence[float]) -> None:
        self._due = iter(due)
        self._next = next(self._due, None)

    def next_due(self, now: float, in_flight: int) -> float | None:
        due = self._next
        if due is not None and due <= now:
            self._next = next(self._due, None)
        return due

    def over(self, now: float) -> bool:
        return self._next is None

    def rest(self) -> Iterable[float]:
        return () if self._next is None else (self._next, *self._due)


class Closed:
    def __init__(self, in_flight: int, seconds: float, most: float = math.inf) -> None:
        """`most`: calls to send, at most."""
        self._in_flight = in_flight
        self._seconds = seconds
        self._left = most

    def next_due(self, now: float, in_flight: int) -> float | None:
        if in_flight >= self._in_flight or self.over(now):
            return None
        self._left -= 1
        return now

    def over(self, now: float) -> bool:
        return now >= self._seconds or self._left <= 0

    def rest(self) -> Iterable[float]:
        return ()


def pacer(plan: Plan) -> Pacer:
    if plan.due is not None:
        return Open(plan.due)
    return Closed(plan.in_flight, plan.seconds, (len(plan.messages) or len(plan.texts)) if plan.once else math.inf)
