"""What replicas would say of themselves: heartbeats of a fleet of a given size, drawn by a seed."""

import random
from collections.abc import Iterator

from protos.scoring.v1.scoring_pb2 import LaneDescription, ReplicaDescription
from protos.scoring.v1.storage_pb2 import LaneLoad, ReplicaState
from realtime_service.settings import SERVED

REPLICAS = 64
RELEASES = ("minilm-banking77-0f285698a800", "minilm-banking77-5c1d77aa02be")
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
        yield ReplicaState(
            replica=described,
            lanes=[LaneDescription(name=lane, precision="int8", device="cpu") for lane in SERVED],
            load={lane: _load(draw) for lane in SERVED},
            wanted={f"caller-{draw.randrange(1_000)}": draw.uniform(0.1, 20.0) for _ in range(_CALLERS)},
        )


def _load(draw: random.Random) -> LaneLoad:
    waiting, per_text = draw.randrange(8), draw.uniform(1.0, 3.0)
    finish = per_text * (waiting + 2)
    return LaneLoad(
        waiting=waiting,
        running=1,
        predicted_finish_ms=finish,
        real_time_finish_ms=finish,
        per_text_ms=per_text,
        load=draw.uniform(0, 1),
    )
