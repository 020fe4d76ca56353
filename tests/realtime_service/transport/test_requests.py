"""From bytes to a request: every complaint names its field, and no bytes at all can do worse than be refused."""

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from protos.inference import open_inference_pb2 as pb
from protos.scoring.v1 import scoring_pb2
from realtime_service.routing.quotas import texts_charged
from realtime_service.serving.request import MAX_REQUEST_ID, check_request
from realtime_service.transport.open_inference.requests import infer_request
from realtime_service.transport.outlines import MOST_FIELDS, name
from realtime_service.transport.scoring_v1 import requests
from shared_model.errors import BadInput
from shared_model.types import MAX_TEXT_BYTES
from tests.realtime_service.transport.odd_messages import odd_messages

TINY_TEXT = b"\x0a\x01a"


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


@given(st.lists(st.text(max_size=600), max_size=5), st.lists(st.text(max_size=600), max_size=5), st.text())
def test_the_outline_of_a_request_is_what_its_quota_depends_on(texts: list[str], pairs: list[str], model: str) -> None:
    request = scoring_pb2.ScoreRequest(texts=texts, text_pairs=pairs, model=model, request_id="a-1", timeout_ms=99)
    expected = (model, texts_charged(texts, pairs))
    assert requests.outline(scoring_pb2.ScoreRequest, request.SerializeToString()) == expected
    submitted = scoring_pb2.SubmitRequest(request=request, deliver_within_ms=9).SerializeToString()
    assert requests.outline(scoring_pb2.SubmitRequest, submitted) == expected


@given(odd_messages(scoring_pb2.ScoreRequest))
def test_the_outline_of_an_odd_message_is_that_of_what_a_parser_finds(raw: bytes) -> None:
    found = scoring_pb2.ScoreRequest.FromString(raw)
    assert requests.outline(scoring_pb2.ScoreRequest, raw) == (
        found.model,
        texts_charged(found.texts, found.text_pairs),
    )
    assert name(scoring_pb2.ScoreRequest, "request_id", raw) == found.request_id[:MAX_REQUEST_ID]


@given(st.binary(max_size=200))
def test_any_bytes_have_an_outline(raw: bytes) -> None:
    requests.outline(scoring_pb2.ScoreRequest, raw)


def test_only_the_first_fields_are_looked_at() -> None:
    request = scoring_pb2.ScoreRequest(texts=["a"] * (MOST_FIELDS - 1), model="m", request_id="1")
    raw = request.SerializeToString()
    assert requests.outline(scoring_pb2.ScoreRequest, raw) == ("", MOST_FIELDS - 1)
    assert name(scoring_pb2.ScoreRequest, "request_id", raw) == "1"
    assert requests.outline(scoring_pb2.ScoreRequest, TINY_TEXT + raw) == ("", MOST_FIELDS)
    assert name(scoring_pb2.ScoreRequest, "request_id", TINY_TEXT + raw) == ""


def test_no_more_of_a_name_is_read_than_a_valid_one_has() -> None:
    long = scoring_pb2.ScoreRequest(texts=["a"], request_id="\U0001f600" * 10**6).SerializeToString()
    assert name(scoring_pb2.ScoreRequest, "request_id", long) == "\U0001f600" * MAX_REQUEST_ID


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


FORGING = ["a\nb", "a\x1b[2J", "a\x00", "\x7f", "\x85", "a\u2028b", "a\u2029", "a\u202eb", "a\u2066b"]


@pytest.mark.parametrize("name", FORGING)
def test_a_name_that_would_forge_a_line_of_a_log_is_refused(name: str) -> None:
    request = scoring_pb2.ScoreRequest(texts=["a"], request_id=name)
    assert bad_field(request) == "request_id"
    assert bad_field(scoring_pb2.ScoreRequest(texts=["a"], release=name)) == "release"
    with pytest.raises(BadInput, match=r"request\.request_id: holds the character U\+"):
        requests.submit_request(scoring_pb2.SubmitRequest(request=request).SerializeToString())
    for field in ("id", "model_name", "model_version"):
        with pytest.raises(BadInput) as refused:
            infer_request(pb.ModelInferRequest(**{field: name}).SerializeToString())
        assert refused.value.field == field


@pytest.mark.parametrize("name", ["ticket-4711", "Zürich", "注文 7", "👩‍💻", "a b"])
def test_other_names_are_taken(name: str) -> None:
    raw = scoring_pb2.ScoreRequest(texts=["a"], request_id=name).SerializeToString()
    assert requests.score_request(raw).request_id == name


@pytest.mark.parametrize("name", FORGING)
def test_what_was_stored_under_such_a_name_stays_readable(name: str) -> None:
    assert requests.result_request(scoring_pb2.GetResultRequest(request_id=name).SerializeToString()) == (name, "")
    assert requests.watch_request(scoring_pb2.WatchResultsRequest(request_ids=[name]).SerializeToString()) == {name: ""}
    stored = scoring_pb2.ScoreRequest(texts=["a"], request_id=name)
    assert check_request(stored).request_id == name


def test_an_id_that_none_can_have_is_refused() -> None:
    with pytest.raises(BadInput, match="request_id: is longer than 256 characters"):
        requests.result_request(scoring_pb2.GetResultRequest(request_id="x" * 257).SerializeToString())
