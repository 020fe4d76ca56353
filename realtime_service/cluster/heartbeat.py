"""The heartbeat that each replica publishes four times a second: how it is encoded, and how others apply it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.storage_pb2 import Figures, ReplicaProfile, ReplicaState, ServedModel
from realtime_service.routing.snapshot import Option, Replica
from realtime_service.settings import SERVED
from shared_model.types import ServingPath

PERIOD_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """Of a lane that takes requests. `queue_depth`: queued texts; `queue_limit`: the most that may be, 0 if unknown.
    `finish`: seconds until a typical text would be answered; `real_time`: the same for a real-time one; `per_text`:
    seconds that one more text adds; `utilisation`: ρ. `variant`: such as "int8/cpu"; `slow`: it misses its latency
    budget there."""

    queue_depth: int = 0
    queue_limit: int = 0
    finish: float = 0.0
    real_time: float = 0.0
    per_text: float = 0.0
    utilisation: float = 0.0
    variant: str = ""
    slow: bool = False


@dataclass(frozen=True)
class Following:
    """How far a replica follows the release pointers: the `version` of the default model's that it has seen, the
    `failures` of releases which the pointers name, and whether it is `pinned` to one release instead. `models`: those
    that it serves beside the default one, by name; `all_models`: it serves every promoted one."""

    version: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)
    pinned: bool = False
    models: Mapping[str, ServedModel] = field(default_factory=dict)
    all_models: bool = False


_UNKNOWN = Following()


def state(
    replica: ReplicaDescription,
    loads: Mapping[ServingPath, LaneLoad] | None = None,
    demand: Mapping[str, float] | None = None,
    following: Following = _UNKNOWN,
    figures: Figures | None = None,
) -> ReplicaState:
    """`loads`: of the lanes that take requests; `demand`: texts a second by caller; `figures`: None without a
    canary."""
    by_lane = {path: loads[path] for path in SERVED if path in loads} if loads else {}
    lanes = by_lane.values()
    return ReplicaState(
        profile=ReplicaProfile(
            replica=replica,
            lanes=by_lane,
            pointer_version=following.version,
            failures=following.failures,
            pinned=following.pinned,
            models=following.models,
            all_models=following.all_models,
            variants={path: it.variant for path, it in by_lane.items()},
            slow_lanes=[path for path, it in by_lane.items() if it.slow],
        ).SerializeToString(),
        wanted=demand,
        waiting=[it.queue_depth for it in lanes],
        max_concurrent_requests=[it.queue_limit for it in lanes],
        predicted_finish_ms=[it.finish * 1000 for it in lanes],
        real_time_finish_ms=[it.real_time * 1000 for it in lanes],
        per_text_ms=[it.per_text * 1000 for it in lanes],
        load=[it.utilisation for it in lanes],
        figures=figures.SerializeToString() if figures else b"",
    )


def read_profile(profile: bytes, known: Mapping[str, Replica]) -> Replica:
    """The replica of a new or changed profile. Its former lanes are kept, with their work under way. `known`: replicas
    by id.

    Raises: DecodeError; ValueError if the profile is of another version.
    """
    read = ReplicaProfile.FromString(profile)
    if not read.replica.id:
        raise ValueError("it does not say whose it is")
    before = known.get(read.replica.id)
    lanes = {lane.path: lane for lane in before.options} if before else {}
    paths = [ServingPath(lane) for lane in read.lanes]
    options = tuple(lanes.get(path) or _lane(read.replica.id, path) for path in paths)
    return Replica(read.replica, options, models=frozenset(read.models))


def apply(replica: Replica, heartbeat: ReplicaState) -> None:
    """Update the numbers of a replica's lanes.

    A prediction is up to a heartbeat old when it is used, so a heartbeat's period is subtracted. Otherwise a lane that
    was full for a moment would get no calls until the next heartbeat; if the prediction is too low, the replica itself
    refuses, at the cost of a round trip. A less urgent lane answers no sooner than a more urgent one.

    Raises: ValueError if a number of a lane is missing.
    """
    replica.demand = heartbeat.wanted
    soonest = soonest_real_time = 0.0
    columns = (heartbeat.waiting, heartbeat.max_concurrent_requests, heartbeat.predicted_finish_ms)
    others = (heartbeat.real_time_finish_ms, heartbeat.per_text_ms, heartbeat.load)
    # This loop is most of a heartbeat's cost with many replicas, so it calls no function that it does not need.
    for lane, queue_depth, queue_limit, finish_ms, real_time_ms, per_text_ms, utilisation in zip(
        replica.options, *columns, *others, strict=True
    ):
        per_text, sent, urgent = per_text_ms / 1000, lane.sent, lane.real_time
        # All but the queued texts of other replicas.
        room = queue_limit - max(0, queue_depth - sent.texts) if queue_limit else math.inf
        # The prediction includes our own work under way, which `Option.predicted` adds itself.
        soonest = max(soonest, per_text, finish_ms / 1000 - max(PERIOD_SECONDS, sent.seconds))
        lane.finish, lane.per_text, lane.utilisation, lane.room = soonest, per_text, utilisation, room
        if urgent:
            finish = real_time_ms / 1000 - max(PERIOD_SECONDS, urgent.sent.seconds)
            soonest_real_time = max(soonest_real_time, per_text, finish)
            urgent.finish, urgent.per_text = soonest_real_time, per_text
            urgent.utilisation, urgent.room = utilisation, room


def _lane(replica: str, path: ServingPath) -> Option:
    """A lane without numbers yet."""
    return Option(replica, path, math.inf, 0.0, 0.0, real_time=Option(replica, path, math.inf, 0.0, 0.0))
