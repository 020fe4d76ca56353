"""What a decision is made on: values, refreshed in the background, never fetched for a request."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from realtime_service.routing.overrides import Policy
from shared_model.releases.pointer import Pointer
from shared_model.types import ServingPath

_LANES = (ServingPath.LATENCY, ServingPath.DYNAMIC, ServingPath.THROUGHPUT)

#: Stands for whatever release a replica answers with, where nobody has the one that was chosen.
ANY_RELEASE = ""


@dataclass(eq=False, slots=True)
class Sent:
    """What this process has sent to a lane of another replica and what has not come back. It outlives heartbeats, which
    come too seldom to tell what is under way. `seconds` of the device there; `ahead`: what is left of them; `texts`:
    those for this very lane, not those it waits for."""

    seconds: float = 0.0
    ahead: float = 0.0
    texts: int = 0

    def add(self, seconds: float, per_text: float) -> None:
        """Less than nothing for what has come back. Of what is under way, the first text is half done."""
        self.seconds += seconds
        self.ahead = max(0.0, self.seconds - per_text / 2)


@dataclass(eq=False, slots=True)
class Option:
    """One lane of another replica, as a choice, for as long as the replica has it: heartbeats change its numbers. Times
    in seconds of the device there.

    `finish`: until a typical text would be answered, without what this process has sent there; `per_text`: what one
    more text adds; `load`: ρ. `real_time`: the lane as REAL_TIME requests see it, which go first; None: as all do.
    `places`: texts that the lane takes of this process at a time.
    """

    replica: str
    path: ServingPath
    finish: float
    per_text: float
    load: float
    sent: Sent = field(default_factory=Sent)
    real_time: "Option | None" = None
    places: float = math.inf

    def predicted(self, texts: int) -> float:
        """Seconds until a request of so many texts would be answered."""
        return self.finish + self.sent.ahead + self.per_text * (texts - 1)

    def full(self, texts: int) -> bool:
        """Whether a request of so many texts would be refused there whatever its deadline."""
        return self.sent.texts + texts > self.places

    def send(self, seconds: float, texts: int, real_time: bool) -> None:
        """Work of so many seconds is sent there, `texts` of it to this lane, or comes back where both are negative.
        `real_time`: REAL_TIME requests wait for it, too."""
        self.sent.add(seconds, self.per_text)
        self.sent.texts += texts
        if self.real_time:
            self.real_time.sent.texts += texts
            if real_time:
                self.real_time.sent.add(seconds, self.per_text)


Options = Mapping[tuple[str, ServingPath], tuple[Option, ...]]


@dataclass(eq=False, slots=True)
class Replica:
    """A replica, for as long as it says the same of itself. `options`: its lanes that take requests, whose numbers
    heartbeats change, as they do `wanted`: texts a second that callers want of it."""

    described: ReplicaDescription
    options: tuple[Option, ...]
    wanted: Mapping[str, float] = field(default_factory=dict)
    id: str = field(init=False)

    def __post_init__(self) -> None:
        self.id = self.described.id


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`local` is this replica, `lanes` those of its lanes that take requests, `load` their ρ. The rest is the last that
    Redis told: `replicas` has all of them, this one included; `options` those lanes of others that may be sent to, by
    release and path, and `real_time` the same as REAL_TIME requests see them; `word` is what replicas know each other
    by."""

    local: str
    lanes: tuple[ServingPath, ...] = ()
    load: Mapping[ServingPath, float] = field(default_factory=dict)
    replicas: tuple[Replica, ...] = ()
    options: Options = field(default_factory=dict)
    real_time: Options = field(default_factory=dict)
    policy: Policy = Policy()
    pointer: Pointer | None = None
    word: str = ""
    redis_available: bool = False
    by_id: Mapping[str, Replica] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {it.id: it for it in self.replicas})

    @property
    def releases(self) -> list[str]:
        """What other replicas have loaded."""
        return sorted({release for release, _ in self.options if release})

    def serves(self, release: str) -> bool:
        """Whether another replica has a lane for a release."""
        return any((release, path) in self.options for path in _LANES)

    def address(self, replica: str) -> str:
        """Where a replica listens. Raises: KeyError."""
        address: str = self.by_id[replica].described.address
        return address

    def reached_by(self, path: ServingPath, replica: str) -> list[Option]:
        """The lanes of another replica that wait for what is sent to one of them: itself and those less urgent."""
        found = self.by_id.get(replica)
        lanes = _LANES[_LANES.index(path) :] if path in _LANES else (path,)
        return [it for it in found.options if it.path in lanes] if found else []


def as_real_time(options: Options) -> Options:
    """The same lanes in the same order, as REAL_TIME requests see them."""
    return {key: tuple(option.real_time or option for option in found) for key, found in options.items()}


def options(replicas: Iterable[Replica], local: str, ejected: Iterable[str] = ()) -> Options:
    """The lanes that may be sent to: of other replicas that neither drain nor are ejected."""
    avoided = {local, *ejected}
    by_release: defaultdict[str, list[Option]] = defaultdict(list)
    for replica in replicas:
        if replica.id in avoided or replica.described.draining:
            continue
        for release in (ANY_RELEASE, *replica.described.releases):
            by_release[release] += replica.options
    found = {
        (release, lane): tuple([option for option in several if option.path is lane])
        for release, several in by_release.items()
        for lane in _LANES
    }
    return {key: several for key, several in found.items() if several}
