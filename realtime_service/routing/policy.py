"""The routing decision: no I/O, no clock, no randomness of its own. In this order:

| # | when                                                        | then                                     |
|---|-------------------------------------------------------------|------------------------------------------|
| 1 | the request pins a release; else its caller is the canary's | that release (`release_for`)             |
| 2 | the caller names a lane                                     | that lane; several texts: never latency  |
| 3 | the release scored the same text last night                 | precomputed                              |
| 4 | one text, and REAL_TIME or timeout < 100 ms                 | latency                                  |
| 5 | BATCH or timeout > 1000 ms                                  | throughput                               |
| 6 | everything else                                             | dynamic                                  |
| 7 | load                                                        | a replica: see below                     |

Rule 1 comes before the decision proper, because how a text is encoded depends on it.

A replica: this one, if it has the lane and is predicted to answer in time. It gives work away while its lane's load is
above the target and a less loaded replica would answer in time. Else the better of two drawn at random; if that would
be late, the best of all. If all would be late, or none has the lane, the next lane that can stand in, rather a less
urgent one; and only when every one of them would be late is the request refused, with the time until the first would
not. A request without a deadline is never late.

Where the request's own lane is full at every replica it is refused, whatever its deadline: a flood of one kind of work
would else fill the lanes of the others.

"Timeout" is the request's own field; a gRPC deadline only tightens when the answer is due, never which path it takes.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from realtime_service.errors import Overloaded, ReplicaUnavailable
from realtime_service.routing.overrides import Policy
from realtime_service.routing.snapshot import Option, Snapshot
from shared_model.types import Priority, ServingPath

#: What takes a request whose own lane is not there or would be late, best first.
_INSTEAD = {
    ServingPath.LATENCY: (ServingPath.DYNAMIC, ServingPath.THROUGHPUT),
    ServingPath.DYNAMIC: (ServingPath.THROUGHPUT, ServingPath.LATENCY),
    ServingPath.THROUGHPUT: (ServingPath.DYNAMIC, ServingPath.LATENCY),
}

#: Predictions that differ by no more seconds than this tell nothing: they are a quarter of a second old. Were the
#: better one taken all the same, one of two idle replicas would get every call for as long as it seems the faster.
ALIKE = 0.002


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """What the decision depends on. Times in seconds from now.

    `patience`: within which an answer must be predicted, None for any time; `timeout`: the request's own field.
    `release`: the one that was chosen. `hint`: the lane the caller names. `precomputed`: every text's published score
    was found. `here`: when this replica would answer, by those of its lanes that can.
    """

    texts: int
    priority: Priority
    timeout: float | None
    patience: float | None
    release: str
    here: Mapping[ServingPath, float]
    hint: ServingPath | None = None
    precomputed: bool = False

    @property
    def real_time(self) -> bool:
        """Whether it goes before the others of its lane."""
        return self.priority is Priority.REAL_TIME


@dataclass(frozen=True, slots=True)
class Decision:
    path: ServingPath
    replica: str
    reason: str


def release_for(pinned: str, active: str, canary: str, weight: float, draw: float) -> str:
    """The pinned release, else the canary for its share of callers, else the active one. `draw`: in [0, 1), the
    caller's own, so that it stays with its release while the weight stays, on every replica."""
    return pinned or (canary if canary and draw < weight else active)


def decide(request: RoutedRequest, policy: Policy, snapshot: Snapshot, draw: float) -> Decision:
    """`draw`: uniform in [0, 1).

    Raises: ReplicaUnavailable when no replica has a lane for the request; Overloaded, with a retry hint, when each
    would be late, or its own lane is full everywhere.
    """
    path, reason = _path(request, policy)
    if path is ServingPath.PRECOMPUTED:
        return Decision(path, snapshot.local, reason)
    least_late = math.inf
    for lane in (path, *_INSTEAD[path]):
        if lane is ServingPath.LATENCY and request.texts > 1:
            continue
        if wait := _until_room(lane, request, snapshot):
            if lane is path:
                raise Overloaded(f"the {lane} lane is full", wait)
            reason += f"; {lane} is full"
            least_late = min(least_late, wait)
            continue
        replica, late = _replica(lane, request, policy, snapshot, draw)
        if late <= 0:
            return Decision(lane, replica, reason)
        reason += f"; {lane} would be late" if late < math.inf else f"; no {lane} lane"
        least_late = min(least_late, late)
    if least_late == math.inf:
        raise ReplicaUnavailable("no replica has a lane that could take this request; try again in a moment")
    raise Overloaded("the answer would come too late", max(0.001, least_late))


def another(
    decision: Decision, request: RoutedRequest, snapshot: Snapshot, tried: Collection[str], draw: float
) -> Decision | None:
    """The same path at another replica, for a call that those in `tried` did not answer; None where nobody else would
    answer in time. `draw`: uniform in [0, 1)."""
    options = _options(decision.path, request, snapshot)
    left = [it for it in options if it.replica not in tried and _late_at(it, request) <= 0]
    return replace(decision, replica=_better_of_two(left, request.texts, draw).replica) if left else None


def stand_in(
    decision: Decision, request: RoutedRequest, snapshot: Snapshot, tried: Collection[str], draw: float
) -> Decision | None:
    """The next lane that can take a call whose own lane no replica can be reached for; None where none can. `tried`,
    `draw`: as in `another`."""
    for lane in _INSTEAD.get(decision.path, ()):
        if lane is ServingPath.LATENCY and request.texts > 1:
            continue
        moved = replace(decision, path=lane, reason=f"{decision.reason}; {decision.path} could not be reached")
        if found := another(moved, request, snapshot, tried, draw):
            return found
    return None


def _path(request: RoutedRequest, policy: Policy) -> tuple[ServingPath, str]:
    if request.hint and (request.texts == 1 or request.hint is not ServingPath.LATENCY):
        return request.hint, "lane named by the caller"
    if request.precomputed:
        return ServingPath.PRECOMPUTED, "scored by this release in the published epoch"
    if request.texts == 1 and (why := _urgent(request, policy)):
        return ServingPath.LATENCY, why
    if why := _bulk(request, policy):
        return ServingPath.THROUGHPUT, why
    thresholds = ("latency_below_ms", "throughput_above_ms") if request.timeout is not None else ()
    return ServingPath.DYNAMIC, f"neither urgent nor bulk{policy.whose(*thresholds)}"


def _urgent(request: RoutedRequest, policy: Policy) -> str:
    """Why a request is latency work; empty when it is not."""
    if request.priority is Priority.REAL_TIME:
        return "priority REAL_TIME"
    tight = request.timeout is not None and request.timeout < policy.latency_below
    return f"timeout below {policy.latency_below * 1000:.0f} ms{policy.whose('latency_below_ms')}" if tight else ""


def _bulk(request: RoutedRequest, policy: Policy) -> str:
    """Why a request is throughput work; empty when it is not."""
    if request.priority is Priority.BATCH:
        return "priority BATCH"
    patient = request.timeout is not None and request.timeout > policy.throughput_above
    if not patient:
        return ""
    return f"timeout above {policy.throughput_above * 1000:.0f} ms{policy.whose('throughput_above_ms')}"


def _until_room(path: ServingPath, request: RoutedRequest, snapshot: Snapshot) -> float:
    """Seconds after which a lane may take the request that is full wherever it is; 0 where it is not."""
    options = _options(path, request, snapshot)
    if not options or not all(option.full(request.texts) for option in options) or path in request.here:
        return 0.0
    return max(0.001, min(option.predicted(request.texts) for option in options))


def _replica(
    lane: ServingPath, request: RoutedRequest, policy: Policy, snapshot: Snapshot, draw: float
) -> tuple[str, float]:
    """Whose lane it should be, and how late it would answer: infinitely where nobody has it."""
    here = _late(request.here.get(lane, math.inf), request)
    options = _options(lane, request, snapshot)
    target = policy.load_targets.get(lane, 0.0)
    overloaded = 0.0 < target < snapshot.load.get(lane, 0.0)
    if not options or (here <= 0 and not overloaded):
        return snapshot.local, here
    other = _better_of_two(options, request.texts, draw)
    late = _late_at(other, request)
    if overloaded and here <= 0:
        gives = other.load <= target and late <= 0
        return (other.replica, late) if gives else (snapshot.local, here)
    if late > 0:
        texts = request.texts
        finishes = [math.inf if option.full(texts) else option.predicted(texts) for option in options]
        other = options[finishes.index(min(finishes))]
        late = _late_at(other, request)
    return (other.replica, late) if late < here else (snapshot.local, here)


def _options(lane: ServingPath, request: RoutedRequest, snapshot: Snapshot) -> Sequence[Option]:
    """That lane of the other replicas, as the request sees it."""
    seen = (request.real_time and snapshot.real_time) or snapshot.options
    return seen.get((request.release, lane), ())


def _better_of_two(options: Sequence[Option], texts: int, draw: float) -> Option:
    """Of two different ones, as `draw` says, the one that would answer first; the first of two that are alike."""
    count = len(options)
    if count == 1:
        return options[0]
    first, second = divmod(int(draw * count * (count - 1)), count - 1)
    one, two = options[first], options[second + (second >= first)]
    return one if one.predicted(texts) <= two.predicted(texts) + ALIKE else two


def _late_at(option: Option, request: RoutedRequest) -> float:
    """Seconds by which the answer of another replica's lane would be too late; one that is full gives none."""
    return math.inf if option.full(request.texts) else _late(option.predicted(request.texts), request)


def _late(finish: float, request: RoutedRequest) -> float:
    """Seconds by which an answer would be too late; never, for one that would never come, is infinitely late."""
    if finish == math.inf or request.patience is None:
        return math.inf if finish == math.inf else -math.inf
    return finish - request.patience
