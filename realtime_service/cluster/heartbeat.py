"""What replicas tell each other four times a second: how it is written, and how it is read into what is known."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.storage_pb2 import ReplicaProfile, ReplicaState
from realtime_service.routing.snapshot import Option, Replica
from realtime_service.settings import SERVED
from shared_model.types import ServingPath

PERIOD_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """Of a lane that takes requests. `waiting`, `places`: texts that wait, and that may, 0 where that is not told;
    seconds until a typical text would be answered, `real_time` where it goes before others, and that one more text
    adds; `load`: ρ."""

    waiting: int = 0
    places: int = 0
    finish: float = 0.0
    real_time: float = 0.0
    per_text: float = 0.0
    load: float = 0.0


@dataclass(frozen=True)
class Following:
    """How far a replica follows the release pointer: the `version` it has seen, why it does not serve releases which
    this version names, and whether it is `pinned` to one release instead."""

    version: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)
    pinned: bool = False


_UNKNOWN = Following()


def state(
    replica: ReplicaDescription,
    loads: Mapping[ServingPath, LaneLoad] | None = None,
    wanted: Mapping[str, float] | None = None,
    following: Following = _UNKNOWN,
) -> ReplicaState:
    """`loads`: of the lanes that take requests; `wanted`: texts a second by caller."""
    told = {path: loads[path] for path in SERVED if path in loads} if loads else {}
    lanes = told.values()
    return ReplicaState(
        profile=ReplicaProfile(
            replica=replica,
            lanes=told,
            pointer_version=following.version,
            failures=following.failures,
            pinned=following.pinned,
        ).SerializeToString(),
        wanted=wanted,
        waiting=[it.waiting for it in lanes],
        max_concurrent_requests=[it.places for it in lanes],
        predicted_finish_ms=[it.finish * 1000 for it in lanes],
        real_time_finish_ms=[it.real_time * 1000 for it in lanes],
        per_text_ms=[it.per_text * 1000 for it in lanes],
        load=[it.load for it in lanes],
    )


def meet(profile: bytes, known: Mapping[str, Replica]) -> Replica:
    """A replica that is new, or says something else of itself than before. Lanes that it had are kept, with what is
    under way to them. `known`: replicas by id.

    Raises: DecodeError; ValueError: it is of another version.
    """
    told = ReplicaProfile.FromString(profile)
    if not told.replica.id:
        raise ValueError("it does not say whose it is")
    before = known.get(told.replica.id)
    lanes = {lane.path: lane for lane in before.options} if before else {}
    paths = [ServingPath(lane) for lane in told.lanes]
    return Replica(told.replica, tuple(lanes.get(path) or _lane(told.replica.id, path) for path in paths))


def hear(replica: Replica, told: ReplicaState) -> None:
    """Its lanes are told new numbers.

    A prediction is a heartbeat old when it is used, and the device has worked meanwhile. Were it not taken off, what
    had been full for a moment would get no calls until the next heartbeat; where it is too little, the replica itself
    refuses, which costs a round trip. A less urgent lane answers no sooner than one more urgent.

    Raises: ValueError where a number of a lane is missing.
    """
    replica.wanted = told.wanted
    soonest = soonest_real_time = 0.0
    columns = (told.waiting, told.max_concurrent_requests, told.predicted_finish_ms)
    others = (told.real_time_finish_ms, told.per_text_ms, told.load)
    # With many replicas this is most of what a heartbeat costs: no calls but those that are needed.
    for lane, waiting, most, finish_ms, real_time_ms, per_text_ms, rho in zip(
        replica.options, *columns, *others, strict=True
    ):
        per_text, sent, urgent = per_text_ms / 1000, lane.sent, lane.real_time
        # All but what others have waiting there.
        places = most - max(0, waiting - sent.texts) if most else math.inf
        # What is under way was in what is predicted, too, and is counted apart.
        soonest = max(soonest, per_text, finish_ms / 1000 - max(PERIOD_SECONDS, sent.seconds))
        lane.finish, lane.per_text, lane.load, lane.places = soonest, per_text, rho, places
        if urgent:
            finish = real_time_ms / 1000 - max(PERIOD_SECONDS, urgent.sent.seconds)
            soonest_real_time = max(soonest_real_time, per_text, finish)
            urgent.finish, urgent.per_text, urgent.load, urgent.places = soonest_real_time, per_text, rho, places


def _lane(replica: str, path: ServingPath) -> Option:
    """A lane of which nothing is known."""
    return Option(replica, path, math.inf, 0.0, 0.0, real_time=Option(replica, path, math.inf, 0.0, 0.0))
