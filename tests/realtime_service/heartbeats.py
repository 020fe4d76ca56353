"""Reads the current heartbeats from Redis."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import redis

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.storage_pb2 import ReplicaProfile, ReplicaState
from shared_model.redis_store import keys

#: By lane, then by field of the message; 0 of a lane that takes no requests.
Numbers = Mapping[str, Counter[str]]


def kept(client: "redis.Redis") -> Iterator[tuple[ReplicaDescription, Numbers]]:
    """The description of each replica, and the numbers of its lanes."""
    for replica in client.smembers(keys.replicas()):
        if stored := client.get(keys.replica(replica.decode())):
            state = ReplicaState.FromString(stored)
            profile = ReplicaProfile.FromString(state.profile)
            columns = {name: getattr(state, name) for name in ("waiting", "load")}
            rows = zip(profile.lanes, *columns.values(), strict=True)
            yield (
                profile.replica,
                defaultdict(Counter, {lane: Counter(dict(zip(columns, row, strict=True))) for lane, *row in rows}),
            )
