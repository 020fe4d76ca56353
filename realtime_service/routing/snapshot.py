"""The input of routing decisions: values that are refreshed in the background, never fetched for a request."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from realtime_service.routing.overrides import Policy
from realtime_service.settings import SERVED
from shared_model.releases.pointer import Pointer
from shared_model.types import ServingPath

#: Any release; chosen where no replica is known to serve the one that should answer.
ANY_RELEASE = ""


def any_release(model: str) -> str:
    """The same of a model; "" is the default one. No release has such an id."""
    return f"@{model}" if model else ANY_RELEASE


@dataclass(eq=False, slots=True)
class Sent:
    """Work that this process has under way at a lane of another replica, counted here because heartbeats come too
    seldom. `seconds`: of the device there; `ahead`: those left of them; `texts`: those for this very lane, without
    those of more urgent ones."""

    seconds: float = 0.0
    ahead: float = 0.0
    texts: int = 0

    def add(self, seconds: float, per_text: float) -> None:
        """Negative `seconds` for work that has ended. The first text under way is taken to be half done."""
        self.seconds += seconds
        self.ahead = max(0.0, self.seconds - per_text / 2)


class SeenLane(Protocol):
    """A lane of another worker of this service, seen as it is now. See `cluster.worker_loads.WorkerLane`."""

    def ahead(self) -> float: ...

    def add(self, seconds: float) -> None: ...


@dataclass(eq=False, slots=True)
class Option:
    """One lane of another replica. The object lives as long as the replica has the lane; heartbeats change its numbers.
    Times in seconds of the device there.

    `finish`: until a typical text would be answered, without the work that this process has sent there; `per_text`: of
    each further text; `utilisation`: ρ. `real_time`: the lane as REAL_TIME requests see it, which go first; None: as
    all others. `room`: texts that the lane takes of this process at a time. `worker`: None for a lane that only
    heartbeats tell of.
    """

    replica: str
    path: ServingPath
    finish: float
    per_text: float
    utilisation: float
    sent: Sent = field(default_factory=Sent)
    real_time: "Option | None" = None
    room: float = math.inf
    worker: SeenLane | None = None

    def predicted(self, texts: int) -> float:
        """Seconds until a request of so many texts would be answered."""
        if self.worker:
            return self.worker.ahead() + self.per_text * texts
        return self.finish + self.sent.ahead + self.per_text * (texts - 1)

    def full(self, texts: int) -> bool:
        """Whether the lane would refuse a request of so many texts whatever its deadline."""
        return self.sent.texts + texts > self.room

    def send(self, seconds: float, texts: int, real_time: bool) -> None:
        """Count work of so many seconds, `texts` of it to this lane, as sent; negative numbers when it has ended.
        `real_time`: REAL_TIME requests wait for it, too."""
        self.sent.add(seconds, self.per_text)
        self.sent.texts += texts
        if self.real_time:
            self.real_time.sent.texts += texts
            if real_time:
                self.real_time.sent.add(seconds, self.per_text)

    def tell(self, seconds: float, real_time: bool) -> None:
        """Tell the other workers of this service of work that this one has sent; negative when it has ended."""
        urgent = self.real_time if real_time else None
        if worker := (urgent or self).worker:
            worker.add(seconds)


Options = Mapping[tuple[str, ServingPath], tuple[Option, ...]]


@dataclass(eq=False, slots=True)
class Replica:
    """A replica with an unchanged profile. `options`: its lanes that take requests; `demand`: texts a second that each
    caller asks of it. Heartbeats change the numbers of both. `models`: those that it serves beside the default one."""

    described: ReplicaDescription
    options: tuple[Option, ...]
    demand: Mapping[str, float] = field(default_factory=dict)
    models: frozenset[str] = frozenset()
    id: str = field(init=False)

    def __post_init__(self) -> None:
        self.id = self.described.id


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`local`: this replica; `lanes`: those of its lanes that take requests; `utilisation`: ρ of each.

    The rest was last read from Redis. `replicas`: all, this one included; `options`: the lanes of others that requests
    may be forwarded to, by release and path; `real_time`: the same as REAL_TIME requests see them; `cluster_token`: the
    secret by which replicas know each other; `pointers`: by model, that of the default model under "".
    """

    local: str
    lanes: tuple[ServingPath, ...] = ()
    utilisation: Mapping[ServingPath, float] = field(default_factory=dict)
    replicas: tuple[Replica, ...] = ()
    options: Options = field(default_factory=dict)
    real_time: Options = field(default_factory=dict)
    policy: Policy = Policy()
    pointers: Mapping[str, Pointer] = field(default_factory=dict)
    cluster_token: str = ""
    redis_available: bool = False
    by_id: Mapping[str, Replica] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {it.id: it for it in self.replicas})

    @property
    def releases(self) -> list[str]:
        """The releases that other replicas have loaded."""
        return sorted({release for release, _ in self.options if release and not release.startswith("@")})

    def serves(self, release: str) -> bool:
        """Whether another replica has a lane for this release."""
        return any((release, path) in self.options for path in SERVED)

    def described(self, replica: str) -> ReplicaDescription:
        """A replica's description of itself. Raises: KeyError."""
        return self.by_id[replica].described

    def backlogged_by(self, path: ServingPath, replica: str) -> list[Option]:
        """The lanes of another replica that a request to one of them delays: that lane and less urgent ones."""
        found = self.by_id.get(replica)
        lanes = SERVED[SERVED.index(path) :] if path in SERVED else (path,)
        return [it for it in found.options if it.path in lanes] if found else []


def as_real_time(options: Options) -> Options:
    """The same lanes in the same order, as REAL_TIME requests see them."""
    return {key: tuple(option.real_time or option for option in found) for key, found in options.items()}


def options(replicas: Iterable[Replica], local: str, ejected: Iterable[str] = ()) -> Options:
    """The lanes of other replicas that neither drain nor are ejected."""
    avoided = {local, *ejected}
    by_release: defaultdict[str, list[Option]] = defaultdict(list)
    for replica in replicas:
        if replica.id in avoided or replica.described.draining:
            continue
        for release in (ANY_RELEASE, *map(any_release, replica.models), *replica.described.releases):
            by_release[release] += replica.options
    found = {
        (release, lane): tuple([option for option in several if option.path is lane])
        for release, several in by_release.items()
        for lane in SERVED
    }
    return {key: several for key, several in found.items() if several}
