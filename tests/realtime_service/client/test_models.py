"""The model that a client asks: carried by each call, and never answered by another one unnoticed."""

import pytest

from protos.scoring.v1 import scoring_pb2
from realtime_service.client import InvalidRequest
from realtime_service.client.streams import ScoreStream
from tests.realtime_service.client.faces import FACES, Face
from tests.realtime_service.client.scripted import scripted

both = pytest.mark.parametrize("face", FACES, ids=["threads", "loop"])


def by(model: str) -> scoring_pb2.ScoreResponse:
    result = scoring_pb2.Result(labels=[scoring_pb2.Label(name="a", score=1.0)])
    return scoring_pb2.ScoreResponse(results=[result] * 64, path=scoring_pb2.LATENCY, release="r-1", model=model)


@both
def test_a_call_carries_its_model_and_so_do_its_parts(face: Face) -> None:
    with scripted(by("side"), by("side"), by("")) as script, face(script.address) as client:
        assert client.score(["a"] * 128, model="side").model == "side"
        # A service of a former version, which is not asked for a model.
        assert client.score("a").model == ""
    assert [(request.model, request.release) for _, request, _ in script.asked] == [
        ("side", ""), ("side", "r-1"), ("", ""),
    ]  # fmt: skip


@both
@pytest.mark.parametrize("model", ["", "main"])
def test_an_answer_of_another_model_is_an_error(face: Face, model: str) -> None:
    """As a replica of a former version gives it, which does not read the field."""
    with (
        scripted(by(model)) as script,
        face(script.address) as client,
        pytest.raises(InvalidRequest, match="model: 'side' was asked, and r-1 answered: that replica knows one model"),
    ):
        client.score("a", model="side")
    message = scoring_pb2.ScoreStreamResponse(request_id="3", response=by(model))
    number, found = ScoreStream({"model": "side"}).read(message)
    assert (number, type(found)) == (3, InvalidRequest)
