"""A burst through a router that its replicas refuse, or that is cancelled, ejects no replica."""

import socket

import pytest

from protos.scoring.v1 import scoring_pb2
from realtime_service.client import Client
from tests.integration.serving.fleet import Fleet, ejected, forwarded, wait_until_answered
from tests.load.wire import Wire, prepare

SCORE = "/scoring.v1.ScoringService/Score"
#: Fewer than one connection may have at once.
CALLS = 200
#: Of one replica at once: far fewer than the burst.
MOST = "4"
#: Texts of a lane, more than those of the burst.
ROOM = "100000"
OK, REFUSED = 0, 8


def burst(address: str, reset: bool) -> set[int]:
    """So many calls at once on one connection; how those of them ended that are not cancelled."""
    host, _, port = address.rpartition(":")
    message = prepare(scoring_pb2.ScoreRequest(texts=["where is my card please slowly " * 8] * 60).SerializeToString())
    wire, expected, ended = Wire("burst", SCORE, 20_000), set[int](), dict[int, int]()
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        for number in range(CALLS):
            stream = wire.call(message)
            # Some of them while they are forwarded.
            if reset and number % 2:
                wire.reset(stream)
            else:
                expected.add(stream)
        while not expected <= ended.keys():
            connection.sendall(wire.outgoing)
            wire.outgoing.clear()
            for stream, status in wire.receive(connection.recv(1 << 16)):
                ended.setdefault(stream, status)
    return {ended[stream] for stream in expected}


@pytest.mark.heavy
def test_refused_and_cancelled_calls_eject_no_replica(ours: Fleet) -> None:
    for _ in range(2):
        ours.replica(TANDEM_MAX_CALLS=MOST, TANDEM_DYNAMIC_CONCURRENCY=ROOM, TANDEM_THROUGHPUT_CONCURRENCY=ROOM)
    router = ours.router()
    wait_until_answered(router)
    with Client(router.address, caller_id="another", attempts=1) as client:
        for reset in (False, True, False):
            statuses = burst(router.address, reset)
            assert {OK} <= statuses <= {OK, REFUSED}
            assert (ejected(router), client.score("card").results != ()) == (0, True)
        assert forwarded(router)["refused"] > 100
