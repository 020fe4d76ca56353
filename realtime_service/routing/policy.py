"""The routing decision: no I/O, no clock, no randomness of its own. In this order:

| # | when                                                        | then                                     |
|---|-------------------------------------------------------------|------------------------------------------|
| 1 | the request pins a release; else its caller is the canary's | that release (`release_for`)             |
| 2 | the caller names a lane                                     | that lane; several texts: never latency  |
| 3 | the release scored the same text last night                 | precomputed                              |
| 4 | one text, and REAL_TIME or timeout < 100 ms                 | latency                                  |
| 5 | BATCH or timeout > 1000 ms                                  | throughput                               |
| 6 | everything else                                             | dynamic                                  |
| 7 | the caller may not use that lane                            | the next fallback lane that it may use   |
| 8 | load                                                        | a replica: see below                     |

Rule 1 comes before the decision proper, because how a text is encoded depends on it.

Replica: this one, if it has the lane and is predicted to answer in time, unless another worker of its service is
clearly sooner: the kernel deals connections to workers, however many calls come over each. It offloads requests while
its lane's utilisation is above the target and a less utilised replica would answer in time. Otherwise the power of two
choices: the sooner of two random replicas; if that one would be late, the soonest of all. If all would be late, or none
has the lane, the next fallback lane, a less urgent one first. If all of those would be late too, the request is
refused, with the time after which one would not be. A request without a deadline is never late. A replica that has the
request's own lane does not take it into a more urgent one, where it would go before requests that are promised an
answer in time.

If the request's own lane is full at every replica, the request is refused whatever its deadline, so that a flood of one
kind of requests does not fill the other lanes.

"Timeout" is the request's own field; a gRPC deadline only bounds when the answer is due, and does not change the path.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from realtime_service.errors import LEAST_RETRY_SECONDS, Overloaded, PermissionDenied, ReplicaUnavailable
from realtime_service.routing.overrides import Policy
from realtime_service.routing.snapshot import Option, Snapshot
from realtime_service.settings import SERVED
from shared_model.types import Priority, ServingPath

#: Fallback lanes of a request whose own lane is not served or would be late, best first.
_FALLBACKS = {
    ServingPath.LATENCY: (ServingPath.DYNAMIC, ServingPath.THROUGHPUT),
    ServingPath.DYNAMIC: (ServingPath.THROUGHPUT, ServingPath.LATENCY),
    ServingPath.THROUGHPUT: (ServingPath.DYNAMIC, ServingPath.LATENCY),
}

#: Predictions that differ by at most so many seconds count as equal, because they are a quarter of a second old. If the
#: smaller one always won, one of two idle replicas would get every call until the next heartbeat.
TIE_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """The request as the decision sees it. Times in seconds from now.

    `remaining_budget`: the latest predicted finish that is in time, None for any; `timeout`: the request's own field.
    `release`: the chosen one. `hint`: the lane that the caller names. `precomputed`: the published scores of all texts
    were found. `here`: when this replica would answer, by lane. `lanes`: those that the caller may use, None for all.
    `alone`: for a lane, the part of `here` that the texts themselves take; None where no lane is here.
    """

    texts: int
    priority: Priority
    timeout: float | None
    remaining_budget: float | None
    release: str
    here: Mapping[ServingPath, float]
    hint: ServingPath | None = None
    precomputed: bool = False
    lanes: Collection[ServingPath] | None = None
    alone: Callable[[ServingPath], float] | None = None

    @property
    def real_time(self) -> bool:
        """Whether the request goes before the others of its lane."""
        return self.priority is Priority.REAL_TIME


@dataclass(frozen=True, slots=True)
class Decision:
    path: ServingPath
    replica: str
    reason: str


def release_for(pinned: str, active: str, canary: str, weight: float, draw: float) -> str:
    """The pinned release, else the canary for its share of callers, else the active one. `draw`: in [0, 1), a hash of
    the caller, so that a caller keeps its release on every replica while the weight stays."""
    return pinned or (canary if canary and draw < weight else active)


def decide(request: RoutedRequest, policy: Policy, snapshot: Snapshot, draw: float) -> Decision:
    """`draw`: uniform in [0, 1).

    Raises: ReplicaUnavailable if no replica has a lane for the request; Overloaded, with a retry hint, if each would be
    late, or the request's own lane is full everywhere; PermissionDenied.
    """
    if request.precomputed and not _named_lane(request):
        return Decision(ServingPath.PRECOMPUTED, snapshot.local, "scored by this release in the published epoch")
    path, reason = own_lane(request, policy)
    least_late = math.inf
    for lane in itertools.chain([path], _fallbacks(path, request)):
        here, options = _candidates(lane, path, request, snapshot)
        if wait := _seconds_until_room(here, options, request):
            if lane is path:
                raise Overloaded(f"the {lane} lane is full", wait)
            reason += f"; {lane} is full"
            least_late = min(least_late, wait)
            continue
        replica, late = _replica(lane, here, options, request, policy, snapshot, draw)
        if late <= 0:
            return Decision(lane, replica, reason)
        reason += f"; {lane} would be late" if late < math.inf else f"; no {lane} lane"
        least_late = min(least_late, late)
    if least_late == math.inf:
        raise ReplicaUnavailable("no replica has a lane that could take this request; try again in a moment")
    raise Overloaded("the answer would come too late", least_late)


def own_lane(request: RoutedRequest, policy: Policy) -> tuple[ServingPath, str]:
    """The lane of a request whatever the load, and why. Raises: PermissionDenied if its caller names a lane that it may
    not use, or may use none."""
    path, reason = _path(request, policy)
    if _permitted(path, request):
        return path, reason
    if path is _named_lane(request):
        raise PermissionDenied(f"the token does not permit the {path} lane")
    for lane in _fallbacks(path, request):
        return lane, f"{reason}; {path} is not permitted"
    raise PermissionDenied("the token permits no lane that could take this request")


def another(
    decision: Decision, request: RoutedRequest, snapshot: Snapshot, tried: Collection[str], draw: float
) -> Decision | None:
    """The same path at another replica, for a call that the replicas in `tried` did not answer; None if no other one
    would answer in time. `draw`: uniform in [0, 1)."""
    options = _options(decision.path, request, snapshot)
    left = [it for it in options if it.replica not in tried and _late_at(it, request) <= 0]
    return replace(decision, replica=_power_of_two_choices(left, request.texts, draw).replica) if left else None


def stand_in(
    decision: Decision, request: RoutedRequest, snapshot: Snapshot, tried: Collection[str], draw: float
) -> Decision | None:
    """The next fallback lane, for a call whose own lane is not reachable at any replica; None if there is no such lane.
    `tried`, `draw`: as in `another`."""
    for lane in _fallbacks(decision.path, request):
        moved = replace(decision, path=lane, reason=f"{decision.reason}; {decision.path} could not be reached")
        if found := another(moved, request, snapshot, tried, draw):
            return found
    return None


def _fallbacks(path: ServingPath, request: RoutedRequest) -> Iterator[ServingPath]:
    """The lanes that may stand in for a lane, best first."""
    single = request.texts == 1
    for lane in _FALLBACKS.get(path, ()):
        if (single or lane is not ServingPath.LATENCY) and _permitted(lane, request):
            yield lane


def _permitted(lane: ServingPath, request: RoutedRequest) -> bool:
    return request.lanes is None or lane in request.lanes


def _named_lane(request: RoutedRequest) -> ServingPath | None:
    return request.hint if request.texts == 1 or request.hint is not ServingPath.LATENCY else None


def _path(request: RoutedRequest, policy: Policy) -> tuple[ServingPath, str]:
    if named := _named_lane(request):
        return named, "lane named by the caller"
    timeout = request.timeout
    if request.texts == 1:
        if request.real_time:
            return ServingPath.LATENCY, "priority REAL_TIME"
        if timeout is not None and timeout < policy.latency_below:
            below = f"timeout below {policy.latency_below * 1000:.0f} ms"
            return ServingPath.LATENCY, below + policy.origin("latency_below_ms")
    if request.priority is Priority.BATCH:
        return ServingPath.THROUGHPUT, "priority BATCH"
    if timeout is not None and timeout > policy.throughput_above:
        above = f"timeout above {policy.throughput_above * 1000:.0f} ms"
        return ServingPath.THROUGHPUT, above + policy.origin("throughput_above_ms")
    thresholds = ("latency_below_ms", "throughput_above_ms") if timeout is not None else ()
    return ServingPath.DYNAMIC, f"neither urgent nor bulk{policy.origin(*thresholds)}"


def may_take(lane: ServingPath, own: ServingPath, lanes: Collection[ServingPath]) -> bool:
    """Whether a replica with these lanes takes a request into one of them. `own`: the lane of the request."""
    return own not in lanes or SERVED.index(lane) >= SERVED.index(own)


def _candidates(
    lane: ServingPath, own: ServingPath, request: RoutedRequest, snapshot: Snapshot
) -> tuple[float, Sequence[Option]]:
    """A lane where it may take the request: when it would answer here, infinity if never, and at other replicas."""
    here, options = request.here.get(lane, math.inf), _options(lane, request, snapshot)
    if lane is own:
        return here, options
    with_own = {option.replica for option in _options(own, request, snapshot)}
    taking = [it for it in options if may_take(lane, own, (own,) if it.replica in with_own else ())]
    return here if may_take(lane, own, request.here) else math.inf, taking


def _seconds_until_room(here: float, options: Sequence[Option], request: RoutedRequest) -> float:
    """Seconds after which a lane that is full at every replica may take the request; 0 if it is not full."""
    if not options or here < math.inf or not all(option.full(request.texts) for option in options):
        return 0.0
    return max(LEAST_RETRY_SECONDS, min(option.predicted(request.texts) for option in options))


def _replica(
    lane: ServingPath,
    here: float,
    options: Sequence[Option],
    request: RoutedRequest,
    policy: Policy,
    snapshot: Snapshot,
    draw: float,
) -> tuple[str, float]:
    """The replica for a lane, and by how many seconds its answer would be late: infinity if no replica has the lane."""
    if worker := _sooner_worker(lane, here, options, request):
        return worker.replica, _late_at(worker, request)
    here = _late(here, request)
    target = policy.load_targets.get(lane, 0.0)
    overloaded = 0.0 < target < snapshot.utilisation.get(lane, 0.0)
    if not options or (here <= 0 and not overloaded):
        return snapshot.local, here
    other = _power_of_two_choices(options, request.texts, draw)
    late = _late_at(other, request)
    if overloaded and here <= 0:
        offload = other.utilisation <= target and late <= 0
        return (other.replica, late) if offload else (snapshot.local, here)
    if late > 0:
        texts = request.texts
        finishes = [math.inf if option.full(texts) else option.predicted(texts) for option in options]
        other = options[finishes.index(min(finishes))]
        late = _late_at(other, request)
    return (other.replica, late) if late < here else (snapshot.local, here)


def _sooner_worker(lane: ServingPath, here: float, options: Sequence[Option], request: RoutedRequest) -> Option | None:
    """Another worker of this service where the request would wait less, by more than it costs to send it there, and
    half as long as its texts take, so that workers do not exchange requests for little. Its texts take as long there.
    """
    if request.alone is None or not TIE_SECONDS < here < math.inf:
        return None
    workers = [(option.worker.ahead(), option) for option in options if option.worker]
    if not workers:
        return None
    (ahead, least), alone = min(workers, key=lambda found: found[0]), request.alone(lane)
    clearly = ahead + TIE_SECONDS + alone / 2 < here - alone
    return least if clearly and _late_at(least, request) <= 0 else None


def _options(lane: ServingPath, request: RoutedRequest, snapshot: Snapshot) -> Sequence[Option]:
    """This lane of the other replicas, as a request of this priority sees it."""
    seen = (request.real_time and snapshot.real_time) or snapshot.options
    return seen.get((request.release, lane), ())


def _power_of_two_choices(options: Sequence[Option], texts: int, draw: float) -> Option:
    """The one of two different options, chosen by `draw`, that would answer sooner; the first of two equal ones."""
    count = len(options)
    if count == 1:
        return options[0]
    first, second = divmod(int(draw * count * (count - 1)), count - 1)
    one, two = options[first], options[second + (second >= first)]
    return one if one.predicted(texts) <= two.predicted(texts) + TIE_SECONDS else two


def _late_at(option: Option, request: RoutedRequest) -> float:
    """Seconds by which the answer of another replica's lane would be too late; infinity if it is full."""
    return math.inf if option.full(request.texts) else _late(option.predicted(request.texts), request)


def _late(finish: float, request: RoutedRequest) -> float:
    """Seconds by which an answer would be too late; infinity if `finish` is."""
    if finish == math.inf or request.remaining_budget is None:
        return math.inf if finish == math.inf else -math.inf
    return finish - request.remaining_budget
