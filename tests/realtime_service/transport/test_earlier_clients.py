"""A client that was generated from an earlier scoring.proto is answered as before.

`earlier_scoring.binpb` is the FileDescriptorProto of the version without models, heads and abstaining (commit 1601a62).
"""

from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from protos.scoring.v1 import scoring_pb2
from realtime_service.client import Client
from shared_model.types import Priority
from tests.realtime_service.conftest import RunningService, eventually

pytestmark = pytest.mark.heavy

TEXTS = ["my card has not arrived", "how do I change my PIN"]


@pytest.fixture(scope="module")
def earlier() -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto.FromString(Path(__file__).with_name("earlier_scoring.binpb").read_bytes())


class EarlierClient:
    """Calls methods of ScoringService by name, with messages of the earlier file."""

    def __init__(self, address: str, file: descriptor_pb2.FileDescriptorProto) -> None:
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        self.messages: dict[str, Any] = message_factory.GetMessageClassesForFiles([file.name], pool)
        self._channel = grpc.insecure_channel(address)

    def __enter__(self) -> "EarlierClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, method: str, **fields: Any) -> Any:
        request, response = (self.messages[f"scoring.v1.{method}{end}"] for end in ("Request", "Response"))
        ask = self._channel.unary_unary(
            f"/scoring.v1.ScoringService/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return ask(request(**fields), timeout=20)


def test_it_is_scored_as_a_client_of_today_is(
    service: RunningService, client: Client, earlier: descriptor_pb2.FileDescriptorProto
) -> None:
    today = client.score(TEXTS, priority=Priority.REAL_TIME)
    with EarlierClient(service.address, earlier) as former:
        answer = former.call("Score", texts=TEXTS, priority=1)
        described = former.call("Describe")
    assert [it.labels[0].name for it in answer.results] == [it.labels[0].name for it in today.results]
    assert [it.labels[0].score for it in answer.results] == pytest.approx(
        [it.labels[0].score for it in today.results], abs=1e-3
    )
    assert (answer.release, scoring_pb2.Path.Name(answer.path)) == (today.release, today.path.name)
    assert (described.release, described.output) == (today.release, "single_label")
    assert "heads" not in {it.name for it in answer.results[0].DESCRIPTOR.fields}
    assert today.results[0].heads, "the release has answers that the earlier client does not know"


def test_work_that_it_submits_is_answered(service: RunningService, earlier: descriptor_pb2.FileDescriptorProto) -> None:
    with EarlierClient(service.address, earlier) as former:
        work = former.messages["scoring.v1.ScoreRequest"](texts=TEXTS, request_id="from an earlier client")
        submitted = former.call("Submit", request=work)

        def ended() -> Any:
            found = former.call("GetResult", request_id=submitted.request_id, ticket=submitted.ticket)
            return found if found.state == scoring_pb2.PUBLISHED else None

        eventually(ended)
        assert [it.labels[0].name for it in ended().response.results] == ["card_arrival", "change_pin"]


def test_no_field_has_changed_since(earlier: descriptor_pb2.FileDescriptorProto) -> None:
    now = descriptor_pb2.FileDescriptorProto.FromString(scoring_pb2.DESCRIPTOR.serialized_pb)
    theirs, ours = (
        {
            (message.name, it.number): (it.name, it.type, it.label, it.type_name)
            for message in file.message_type
            for it in message.field
        }
        for file in (earlier, now)
    )
    assert len(theirs) > 80
    assert theirs.items() <= ours.items()
