"""From bytes to a request: every complaint names its field, and no bytes at all can do worse than be refused."""

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from protos.scoring.v1 import scoring_pb2
from realtime_service.transport.scoring_v1 import requests
from shared_model.errors import BadInput
from shared_model.types import MAX_TEXT_BYTES


def bad_field(message: Message | bytes) -> str:
    raw = message if isinstance(message, bytes) else message.SerializeToString()
    with pytest.raises(BadInput) as refused:
        requests.score_request(raw)
    return refused.value.field


@pytest.mark.parametrize(
    ("request_fields", "field"),
    [
        ({"texts": []}, "texts"),
        ({"texts": ["a"] * 65}, "texts"),
        ({"texts": [""]}, "texts[0]"),
        ({"texts": ["fine", " \n\t"]}, "texts[1]"),
        ({"texts": ["é" * (MAX_TEXT_BYTES // 2) + "!"]}, "texts[0]"),
        ({"texts": ["a"], "timeout_ms": -1}, "timeout_ms"),
        ({"texts": ["a"], "top_k": 6}, "top_k"),
        ({"texts": ["a"], "request_id": "x" * 257}, "request_id"),
        ({"texts": ["a"], "priority": 9}, "priority"),
    ],
)
def test_a_wrong_field_is_named(request_fields: dict[str, object], field: str) -> None:
    assert bad_field(scoring_pb2.ScoreRequest(**request_fields)) == field


def test_a_text_at_the_limit_passes() -> None:
    text = "é" * (MAX_TEXT_BYTES // 2)
    raw = scoring_pb2.ScoreRequest(texts=[text]).SerializeToString()
    assert requests.score_request(raw).texts == (text,)


def test_text_that_is_not_utf8_is_named_with_its_place() -> None:
    raw = scoring_pb2.ScoreRequest(texts=["fine", "cafX"]).SerializeToString().replace(b"cafX", b"caf\xe9")
    assert bad_field(raw) == "texts[1]"
    inner = scoring_pb2.ScoreRequest(texts=["cafX"], request_id="1")
    raw = scoring_pb2.SubmitRequest(request=inner).SerializeToString().replace(b"cafX", b"caf\xe9")
    with pytest.raises(BadInput, match=r"request\.texts\[0\]: is not valid UTF-8 at byte 3"):
        requests.submit_request(raw)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"request_id": ""}, "request.request_id"),
        ({"request_id": "1", "timeout_ms": 10}, "request.timeout_ms"),
        ({"request_id": "1", "priority": scoring_pb2.BATCH}, "request.priority"),
    ],
)
def test_deferred_work_needs_an_id_and_takes_no_deadline(fields: dict[str, object], field: str) -> None:
    message = scoring_pb2.SubmitRequest(request=scoring_pb2.ScoreRequest(texts=["a"], **fields))
    with pytest.raises(BadInput) as refused:
        requests.submit_request(message.SerializeToString())
    assert refused.value.field == field


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(raw: bytes) -> None:
    try:
        request = requests.score_request(raw)
    except BadInput as refusal:
        assert refusal.field  # noqa: PT017 - both ends are right, only a third is wrong
    else:
        assert request.texts


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.integers(0, 10**6), st.integers(0, 5))
def test_what_is_right_arrives_unchanged(texts: list[str], timeout_ms: int, top_k: int) -> None:
    texts = [f"x{text}" for text in texts]
    message = scoring_pb2.ScoreRequest(texts=texts, timeout_ms=timeout_ms, top_k=top_k)
    request = requests.score_request(message.SerializeToString())
    assert list(request.texts) == texts
    assert request.timeout == (timeout_ms / 1000 if timeout_ms else None)
    assert request.top_k == (top_k or 3)
