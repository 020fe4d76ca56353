"""Heartbeats of a simulated fleet of a given size, drawn by a seed."""

import random
from collections.abc import Iterator

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.storage_pb2 import ReplicaState
from realtime_service.cluster import heartbeat
from realtime_service.cluster.heartbeat import LaneLoad
from realtime_service.routing.snapshot import Replica
from realtime_service.settings import SERVED
from shared_model.trust.keyring import Keyring

REPLICAS = 64
RELEASES = ("minilm-banking77-0f285698a800", "minilm-banking77-5c1d77aa02be")
#: With a cluster key, as a service has one.
KEYS = Keyring(cluster=b"0123456789abcdef" * 4)
#: Callers near their quotas that each replica tells the others of.
_CALLERS = 16


def name(number: int) -> str:
    return f"replica-{number:02d}"


def states(draw: random.Random, replicas: int = REPLICAS) -> Iterator[ReplicaState]:
    """Of each replica: three lanes with some load, two releases, callers with quotas."""
    for number in range(replicas):
        described = ReplicaDescription(
            id=name(number), address=f"10.0.0.{number}:50051", release=RELEASES[0], releases=RELEASES
        )
        demand = {f"caller-{draw.randrange(1_000)}": draw.uniform(0.1, 20.0) for _ in range(_CALLERS)}
        yield heartbeat.state(described, {lane: _load(draw) for lane in SERVED}, demand)


def replica(state: ReplicaState) -> Replica:
    """As one that has never heard of it knows it."""
    met = heartbeat.read_profile(state.profile, {})
    heartbeat.apply(met, state)
    return met


def _load(draw: random.Random) -> LaneLoad:
    depth, per_text = draw.randrange(8), draw.uniform(0.001, 0.003)
    finish = per_text * (depth + 2)
    return LaneLoad(depth, finish=finish, real_time=finish, per_text=per_text, utilisation=draw.uniform(0, 1))
