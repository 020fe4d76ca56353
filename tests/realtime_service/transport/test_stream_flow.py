"""Backpressure over a real socket: a caller that sends without reading answers is not read from."""

import time
from collections.abc import Callable, Iterator

import grpc

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from tests.realtime_service.conftest import RunningService, eventually

REQUESTS = 8000
#: Answers echo its beginning: some hundred fill what the transport buffers, which shall not grow with what it is
#: offered.
LONG_ID = "x" * 4000
OPTIONS = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 64 * 1024)]


def test_a_slow_reader_holds_up_its_own_stream_and_loses_nothing(service: RunningService) -> None:
    sent = 0

    def requests() -> Iterator[scoring_pb2.ScoreRequest]:
        nonlocal sent
        for number in range(REQUESTS):
            sent = number + 1
            # Requests without texts are refused, so that the device's speed does not matter.
            yield scoring_pb2.ScoreRequest(request_id=f"{number} {LONG_ID}")

    with grpc.insecure_channel(service.address, options=OPTIONS) as channel:
        answers = ScoringServiceStub(channel).ScoreStream(requests(), timeout=120)
        # The requests sent so far are in the transports' buffers, some megabytes, and in the stream's window.
        assert settled(lambda: sent) < REQUESTS / 2
        # Other callers are served meanwhile.
        assert ScoringServiceStub(channel).Score(scoring_pb2.ScoreRequest(texts=["card"]), timeout=10).results
        assert {int(answer.request_id.split()[0]) for answer in answers} == set(range(REQUESTS))


def settled(value: Callable[[], int]) -> int:
    """Wait until a number has not changed for half a second; returns it."""
    seen, since = value(), time.monotonic()

    def is_still() -> bool:
        nonlocal seen, since
        if value() != seen:
            seen, since = value(), time.monotonic()
        return time.monotonic() - since > 0.5

    eventually(is_still)
    return seen
