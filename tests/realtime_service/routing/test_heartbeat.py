"""What another replica's heartbeat becomes for whoever may send to it."""

import math

import pytest

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.storage_pb2 import LaneLoad, ReplicaState
from realtime_service.routing.registry import read_replica
from realtime_service.routing.snapshot import Option, Replica, Sent
from shared_model.types import ServingPath

LANE = ServingPath.THROUGHPUT


@pytest.mark.parametrize(
    ("most", "waiting", "ours", "places"),
    [
        (256, 0, 0, 256),
        # All that waits there is ours.
        (256, 200, 200, 256),
        # Of what waits there some is others', who fill as much of the lane.
        (256, 200, 150, 206),
        # We have sent more since it told.
        (256, 10, 90, 256),
        (256, 256, 0, 0),
        # A replica that does not say refuses for itself.
        (0, 10, 0, math.inf),
    ],
)
def test_what_others_have_waiting_leaves_us_that_much_less(most: int, waiting: int, ours: int, places: float) -> None:
    load = LaneLoad(waiting=waiting, max_concurrent_requests=most)
    state = ReplicaState(replica=ReplicaDescription(id="b"), load={str(LANE): load})
    before = Replica(state.replica, (Option("b", LANE, 0.0, 0.0, 0.0, Sent(texts=ours)),))
    [option] = read_replica(state, before).options
    assert option.real_time is not None
    assert (option.places, option.real_time.places) == (places, places)
