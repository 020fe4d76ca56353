"""Answers of further heads are read from the message when a caller asks for them."""

import copy
import json

import pytest

from protos.scoring.v1 import scoring_pb2
from realtime_service.cli import printing
from realtime_service.client.answers import answer
from shared_model.types import HeadScore, Label


def message() -> scoring_pb2.ScoreResponse:
    response = scoring_pb2.ScoreResponse(path=scoring_pb2.LATENCY)
    result = response.results.add(tokens=3)
    result.heads["mood"].labels.add(name="polite", score=0.5)
    result.heads["mood"].abstained = True
    result.heads["length"].vector.append(2.0)
    return response


def test_further_heads_are_a_mapping_in_the_order_of_their_names() -> None:
    heads = answer(message()).results[0].heads
    wanted = {"length": HeadScore((), (2.0,)), "mood": HeadScore((Label("polite", 0.5),), (), abstained=True)}
    assert heads == wanted
    assert list(heads) == ["length", "mood"]
    assert repr(heads) == repr(wanted)


def test_a_head_that_the_release_has_not_is_missing_and_stays_so() -> None:
    answered = answer(message())
    with pytest.raises(KeyError, match="scope"):
        answered.results[0].heads["scope"]
    assert answered.message == message()
    assert len(answered.results[0].heads) == 2


def test_an_answer_can_be_copied_and_printed_as_data() -> None:
    answered = answer(message())
    assert copy.deepcopy(answered) == answered
    printed = json.loads(json.dumps(printing.answer_data(answered)))
    assert printed["results"][0]["heads"]["mood"]["labels"] == [{"name": "polite", "score": 0.5}]
