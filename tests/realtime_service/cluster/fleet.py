"""Replicas that enforce quotas together, on a simulated clock, with a dictionary in place of Redis."""

import heapq
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from realtime_service.cluster.heartbeat import PERIOD_SECONDS
from realtime_service.errors import Overloaded
from realtime_service.routing.overrides import Policy
from realtime_service.routing.quotas import Quotas
from realtime_service.routing.snapshot import Replica, Snapshot

CALLER = "chatbot"


@dataclass(frozen=True, order=True)
class Call:
    at: float
    replica: int
    texts: int = 1
    caller: str = CALLER


@dataclass
class Fleet:
    """`phases`: when each replica's heartbeat comes, as a share of the period. `heartbeats`: the last of each."""

    policy: Policy
    phases: Sequence[float]
    redis_available: bool = True
    dead: set[int] = field(default_factory=set)
    #: The longest time between two heartbeats of a replica, in periods.
    late: float = 1.0
    draw: random.Random = field(default_factory=lambda: random.Random(1))
    heartbeats: dict[str, Replica] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.replicas = [Quotas(Snapshot(str(number), policy=self.policy)) for number in range(len(self.phases))]
        # All replicas have seen each other before the first call.
        for _ in range(2):
            for number in range(len(self.replicas)):
                self.beat(number, 0.0)
        self._due = [(phase * PERIOD_SECONDS, number) for number, phase in enumerate(self.phases)]
        heapq.heapify(self._due)

    def beat(self, number: int, now: float) -> None:
        if self.redis_available and number not in self.dead:
            name, quotas = str(number), self.replicas[number]
            self.heartbeats[name] = Replica(ReplicaDescription(id=name), (), quotas.demand(now))
            quotas.update(Snapshot(name, replicas=tuple(self.heartbeats.values()), policy=self.policy))

    def admitted(self, calls: Iterable[Call]) -> list[Call]:
        """Those of the calls, in order of time, that were admitted."""
        found = []
        for call in calls:
            self.advance(call.at)
            if self.admits(call):
                found.append(call)
        return found

    def advance(self, until: float) -> None:
        while self._due[0][0] <= until:
            now, number = self._due[0]
            self.beat(number, now)
            heapq.heapreplace(self._due, (now + PERIOD_SECONDS * self.draw.uniform(1.0, self.late), number))

    def admits(self, call: Call) -> bool:
        try:
            self.replicas[call.replica].admit(call.caller, call.texts, call.at)
        except Overloaded:
            return False
        return True


def rate(calls: Sequence[Call], start: float, end: float) -> float:
    """Texts a second."""
    return sum(it.texts for it in calls if start <= it.at < end) / (end - start)


def most_in_a_second(calls: Sequence[Call]) -> int:
    """The most texts in any period of one second."""
    most = texts = first = 0
    for call in calls:
        texts += call.texts
        while calls[first].at <= call.at - 1.0:
            texts -= calls[first].texts
            first += 1
        most = max(most, texts)
    return most
