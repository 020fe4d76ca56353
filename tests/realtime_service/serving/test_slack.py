"""An answer tells a caller with a deadline how much of it was left."""

from collections.abc import Iterator

import grpc
import pytest

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from tests.realtime_service.conftest import RunningService


@pytest.fixture
def stub(service: RunningService) -> Iterator[ScoringServiceStub]:
    with grpc.insecure_channel(service.address) as channel:
        yield ScoringServiceStub(channel)


def test_without_a_deadline_there_is_no_slack(stub: ScoringServiceStub) -> None:
    assert not stub.Score(scoring_pb2.ScoreRequest(texts=["card"])).HasField("slack_us")


@pytest.mark.parametrize(
    ("timeout_ms", "transport", "due_ms"), [(900, None, 900), (0, 2.0, 2000), (900, 5.0, 900), (5000, 2.0, 2000)]
)
def test_slack_is_that_of_the_nearer_deadline(
    stub: ScoringServiceStub, timeout_ms: int, transport: float | None, due_ms: int
) -> None:
    answer = stub.Score(scoring_pb2.ScoreRequest(texts=["card"], timeout_ms=timeout_ms), timeout=transport)
    # The transport rounds a deadline up, by a hundredth at most.
    assert 0 < answer.slack_us <= 1010 * due_ms - answer.queue_us - answer.compute_us
