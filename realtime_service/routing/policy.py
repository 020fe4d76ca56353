"""The routing decision: no I/O, no clock, no randomness of its own.

| # | when                                                        | path                     |
|---|-------------------------------------------------------------|--------------------------|
| 1 | the chosen release scored the same text last night          | precomputed              |
| 2 | one text, and REAL_TIME or timeout < 100 ms                 | latency                  |
| 3 | BATCH or timeout > 1000 ms                                  | throughput               |
| 4 | everything else                                             | dynamic                  |

A lane that this replica lacks, or that is not warm yet, is replaced by the next that can: rather a less urgent one, for
several texts never latency.

Which release answers is chosen before (`models.Serving.pick`): how a text is encoded depends on it.

"Timeout" is the request's own field; a gRPC deadline only tightens when the answer is due, never which path it takes.
"""

from dataclasses import dataclass

from realtime_service.errors import ReplicaUnavailable
from realtime_service.routing.snapshot import Snapshot
from shared_model.types import Priority, ServingPath

#: What takes a request whose own lane is not here, best first.
_INSTEAD = {
    ServingPath.LATENCY: (ServingPath.DYNAMIC, ServingPath.THROUGHPUT),
    ServingPath.DYNAMIC: (ServingPath.THROUGHPUT, ServingPath.LATENCY),
    ServingPath.THROUGHPUT: (ServingPath.DYNAMIC, ServingPath.LATENCY),
}


@dataclass(frozen=True, slots=True)
class Policy:
    """Thresholds in seconds; a timeout equal to either of them is dynamic."""

    latency_below: float = 0.1
    throughput_above: float = 1.0


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """What the decision depends on. `precomputed`: every text's published score was found."""

    texts: int
    priority: Priority
    timeout: float | None
    precomputed: bool


@dataclass(frozen=True, slots=True)
class Decision:
    path: ServingPath
    replica: str
    reason: str


def decide(request: RoutedRequest, policy: Policy, snapshot: Snapshot) -> Decision:
    """Raises: ReplicaUnavailable when no lane of this replica can take the request."""
    path, reason = _path(request, policy)
    if path is ServingPath.PRECOMPUTED or path in snapshot.lanes:
        return Decision(path, snapshot.local, reason)
    for other in _INSTEAD[path]:
        if other in snapshot.lanes and (other is not ServingPath.LATENCY or request.texts == 1):
            return Decision(other, snapshot.local, f"{reason}; no {path} lane here")
    raise ReplicaUnavailable(f"this replica has no {path} lane and none that could stand in for it; ask another")


def _path(request: RoutedRequest, policy: Policy) -> tuple[ServingPath, str]:
    timeout = request.timeout
    if request.precomputed:
        return ServingPath.PRECOMPUTED, "scored by this release in the published epoch"
    if request.texts == 1:
        if request.priority is Priority.REAL_TIME:
            return ServingPath.LATENCY, "priority REAL_TIME"
        if timeout is not None and timeout < policy.latency_below:
            return ServingPath.LATENCY, f"timeout below {policy.latency_below * 1000:.0f} ms"
    if request.priority is Priority.BATCH:
        return ServingPath.THROUGHPUT, "priority BATCH"
    if timeout is not None and timeout > policy.throughput_above:
        return ServingPath.THROUGHPUT, f"timeout above {policy.throughput_above * 1000:.0f} ms"
    return ServingPath.DYNAMIC, "neither urgent nor bulk"
