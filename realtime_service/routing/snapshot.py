"""What a decision is made on: values, refreshed in the background, never fetched for a request."""

from dataclasses import dataclass, field

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from shared_model.releases.pointer import Pointer


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`local` is this replica. The rest is the last that Redis told."""

    local: str
    replicas: tuple[ReplicaDescription, ...] = field(default=())
    pointer: Pointer | None = None
    redis_available: bool = False
