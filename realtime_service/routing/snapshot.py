"""What a decision is made on: values, refreshed in the background, never fetched for a request."""

from dataclasses import dataclass, field

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from shared_model.releases.pointer import Pointer
from shared_model.types import ServingPath


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`local` is this replica, `lanes` those of its lanes that take requests. The rest is the last that Redis told."""

    local: str
    lanes: tuple[ServingPath, ...] = ()
    replicas: tuple[ReplicaDescription, ...] = field(default=())
    pointer: Pointer | None = None
    redis_available: bool = False
