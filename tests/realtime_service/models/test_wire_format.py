"""Fields are encoded as protobuf encodes them, whatever their number and size."""

import pytest

from protos.scoring.v1.scoring_pb2 import LookupResponse, LookupResult
from protos.scoring.v1.storage_pb2 import ReplicaState
from realtime_service.models.wire_format import field, tag


@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, 2_100_000])
def test_a_field_of_any_size_is_as_protobuf_has_it(size: int) -> None:
    content = b"x" * size
    assert field(tag(LookupResult.ID_FIELD_NUMBER), content) == LookupResult(id=content.decode()).SerializeToString()


def test_a_message_field_may_be_empty() -> None:
    expected = LookupResponse(results=[LookupResult()]).SerializeToString()
    assert field(tag(LookupResponse.RESULTS_FIELD_NUMBER), b"") == expected


@pytest.mark.parametrize("name", ["profile", "mac", "figures"])
def test_a_field_of_any_number_is_as_protobuf_has_it(name: str) -> None:
    """The last one, 16, is the first whose tag takes two bytes."""
    number = getattr(ReplicaState, f"{name.upper()}_FIELD_NUMBER")
    assert field(tag(number), b"abc") == ReplicaState(**{name: b"abc"}).SerializeToString()
