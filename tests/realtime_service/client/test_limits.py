"""What the clients do about a service's limits, and what they send beside a request: lane and token."""

from typing import Any

import grpc
import pytest

from protos.scoring.v1 import scoring_pb2
from realtime_service.client import CallError, InvalidRequest, calls
from shared_model.errors import BadInput
from shared_model.types import Priority, ServingPath
from tests.realtime_service.client.faces import FACES, Face
from tests.realtime_service.client.scripted import Ends, scripted
from tests.realtime_service.conftest import RunningService

both = pytest.mark.parametrize("face", FACES, ids=["threads", "loop"])


def answer(start: int, texts: int, path: Any = scoring_pb2.THROUGHPUT) -> scoring_pb2.ScoreResponse:
    """To texts that are numbered from `start`."""
    results = [
        scoring_pb2.Result(labels=[scoring_pb2.Label(name=f"of {number}", score=0.5)])
        for number in range(start, start + texts)
    ]
    return scoring_pb2.ScoreResponse(results=results, path=path, release="r-1", queue_us=10, compute_us=100)


@both
def test_more_than_64_texts_are_several_calls_and_one_answer(face: Face) -> None:
    texts = [f"text {number}" for number in range(150)]
    steps = answer(0, 64, scoring_pb2.PRECOMPUTED), answer(64, 64), answer(128, 22)
    with scripted(*steps) as script, face(script.address) as client:
        scored = client.score(texts, text_pairs=texts, priority=Priority.BATCH, timeout_ms=20_000, lane="throughput")
    assert [result.labels[0].name for result in scored.results] == [f"of {number}" for number in range(150)]
    assert (scored.queue_us, scored.compute_us, scored.path, scored.release) == (30, 300, ServingPath.THROUGHPUT, "r-1")
    requests = [request for _, request, _ in script.asked]
    assert [len(request.texts) for request in requests] == [64, 64, 22]
    assert [text for request in requests for text in request.texts] == texts
    assert [text for request in requests for text in request.text_pairs] == texts
    assert {(it.priority, it.timeout_ms) for it in requests} == {(scoring_pb2.BATCH, 20_000)}
    assert {metadata["x-tandem-lane"] for _, _, metadata in script.asked} == {"throughput"}
    # What is promoted meanwhile answers none of them.
    assert [request.release for request in requests] == ["", "r-1", "r-1"]


def test_the_parts_of_a_request_share_its_timeout() -> None:
    first, second = calls.Scoring(["text"] * 65, {"timeout_ms": 500})
    assert first.seconds == second.seconds == 0.5
    assert first.began is not None
    assert first.began == second.began


@both
def test_the_first_part_that_fails_ends_the_request(face: Face) -> None:
    steps = answer(0, 64), Ends(grpc.StatusCode.INVALID_ARGUMENT, "texts[3]: is empty")
    with scripted(*steps) as script, face(script.address) as client:
        with pytest.raises(InvalidRequest, match="is empty"):
            client.score(["text"] * 200)
        assert len(script.asked) == 2


@both
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"text_pairs": ["text"] * 64}, "text_pairs: holds 64 texts, must hold 65"),
        ({"allow_deferred": True}, "allow_deferred: takes 1 to 64 texts"),
        ({"timeout_ms": -5}, "timeout_ms: is -5, must be positive"),
        ({"timeout_ms": 0}, "timeout_ms: is 0, must be positive"),
        ({"timeout_ms": 80.5}, "timeout_ms: is 80.5, must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused_before_it_is_sent(face: Face, options: dict[str, Any], says: str) -> None:
    with scripted(answer(0, 64)) as script, face(script.address) as client:
        with pytest.raises(InvalidRequest, match=says):
            client.score(["text"] * 65, **options)
        if "timeout_ms" in options:
            with pytest.raises(InvalidRequest, match=says):
                client.listed("stream", ["text"], **options)
    assert script.asked == []


@both
@pytest.mark.parametrize(
    ("method", "arguments", "says"),
    [
        ("score", [None], "texts: is NoneType, must be a str or several"),
        ("score", [b"hello"], "texts: is bytes, must be a str or several"),
        ("score", [["hello", 5]], r"texts\[1\]: is int, must be a str"),
        ("score", ["half \ud83d"], "texts: is not valid Unicode: half of a surrogate pair at character 5"),
        ("submit", [17, "hello"], "request_id: is int, must be a str"),
        ("submit", ["job", ["\udc00"]], r"texts\[0\]: is not valid Unicode"),
        ("result", [None], "request_id: is NoneType, must be a str"),
        ("lookup", [[17]], r"ids\[0\]: is int, must be a str"),
    ],
)
def test_what_is_no_text_is_refused_by_name(face: Face, method: str, arguments: list[Any], says: str) -> None:
    with face("127.0.0.1:1") as client, pytest.raises(InvalidRequest, match=says):
        getattr(client, method)(*arguments)


@both
def test_a_priority_by_another_name_is_refused_with_those_that_are(face: Face) -> None:
    says = "priority: is 'BATCH', must be one of unspecified, real_time, normal, batch"
    with face("127.0.0.1:1") as client, pytest.raises(InvalidRequest, match=says):
        client.score("hello", priority="BATCH")


@both
@pytest.mark.parametrize(("client_options", "options"), [({"caller_id": "Zoë"}, {}), ({}, {"lane": "schnell\n"})])
def test_what_no_header_can_carry_is_refused_by_name(face: Face, client_options: Any, options: Any) -> None:
    [name] = client_options or options
    with face("127.0.0.1:1", **client_options) as client, pytest.raises(BadInput, match=f"{name}: holds characters"):
        client.score("hello", **options)


@both
def test_a_token_is_sent_with_each_call_and_may_be_renewed(face: Face) -> None:
    tokens = iter(["first", "second"])
    with scripted(answer(0, 1)) as script:
        with face(script.address, caller_id="bot-7", token=lambda: next(tokens)) as client:
            client.score("hello")
            client.score("hello")
        with face(script.address, token="kept") as client:  # noqa: S106 - not a secret
            client.score("hello")
        with face(script.address) as client:
            client.score("hello")
    sent = [metadata.get("authorization") for _, _, metadata in script.asked]
    assert sent == ["Bearer first", "Bearer second", "Bearer kept", None]


@both
def test_a_token_that_cannot_be_sent_is_refused_without_being_shown(face: Face) -> None:
    with scripted(answer(0, 1)) as script, face(script.address, token="secret\n") as client:  # noqa: S106
        with pytest.raises(BadInput) as error:
            client.score("hello")
        assert str(error.value) == "token: holds characters other than printable ASCII"
        assert "secret" not in repr(client.client._caller)
    assert script.asked == []


@both
def test_a_service_scores_500_texts_in_order(face: Face, service: RunningService) -> None:
    texts = ["where is my card", "I want to close my account"] * 250
    with face(service.address) as client:
        scored = client.score(texts, priority=Priority.BATCH)
    names = [result.labels[0].name for result in scored.results]
    assert names == ["card_arrival", "terminate_account"] * 250


@both
def test_a_caller_may_name_a_lane(face: Face, service: RunningService) -> None:
    with face(service.address) as client:
        scored = client.score("where is my card", lane="throughput")
        assert (scored.path, scored.reason) == (ServingPath.THROUGHPUT, "lane named by the caller")
        ((_, streamed),) = client.listed("stream", ["where is my card"], lane=ServingPath.LATENCY)
        assert not isinstance(streamed, CallError)
        assert streamed.path is ServingPath.LATENCY
        with pytest.raises(InvalidRequest, match="x-tandem-lane: 'fast' is no lane"):
            client.score("where is my card", lane="fast")
