"""A message that is looked up has the result that `Score` gives of the same published scores, for any output."""

from typing import Any, cast

import pytest

from protos.scoring.v1.scoring_pb2 import LookupResponse, ScoreResponse
from protos.scoring.v1.storage_pb2 import PublishedHead, PublishedScore
from realtime_service.models.registry import Model
from realtime_service.routing.policy import Decision
from realtime_service.serving import answer
from realtime_service.serving.message_lookup import Found
from realtime_service.serving.score_response import score_response
from realtime_service.transport.scoring_v1.responses import lookup_response
from shared_model.heads import Heads, HeadSpec
from shared_model.output import OutputKind, OutputSpec
from shared_model.types import ServingPath

LABELS = OutputSpec(OutputKind.SINGLE_LABEL, tuple("abcdefg"), 7, abstain_below=0.6)
VALUES = OutputSpec(OutputKind.REGRESSION, ("low", "high"), 2)
EMBEDDING = OutputSpec(OutputKind.EMBEDDING, (), 4)
SEVERAL = Heads.of(LABELS, further=(HeadSpec("values", VALUES), HeadSpec("embedding", EMBEDDING)))
OF_LABELS = {"labels": [4, 2, 1, 0, 3], "scores": [0.5, 0.25, 0.125, 0.0625, 0.03125], "abstained": True}
OF_SEVERAL = [PublishedHead(labels=[0, 1], scores=[3.5, -1.0]), PublishedHead(scores=[0.5, 0.5, 0.5, 0.5])]


@pytest.mark.parametrize("top_k", [0, 1, 5])
@pytest.mark.parametrize(
    ("heads", "score"),
    [
        (Heads.of(LABELS), PublishedScore(tokens=7, truncated=True, **OF_LABELS)),
        (Heads.of(EMBEDDING), PublishedScore(tokens=3, scores=[0.5, -0.5, 0.5, 0.5])),
        (SEVERAL, PublishedScore(tokens=3, heads=OF_SEVERAL, **OF_LABELS)),
    ],
    ids=["labels", "embedding", "several"],
)
def test_a_result_is_that_of_the_published_answer(heads: Heads, score: PublishedScore, top_k: int) -> None:
    model = Model("tiny-0123456789ab", heads, cast(Any, None), {})
    decision = Decision(ServingPath.PRECOMPUTED, "here", "scored last night")
    scored = score_response(answer.published(model, [score], decision, top_k or 3), "")
    [expected] = ScoreResponse.FromString(scored).results
    raw = lookup_response(["a", "b"], Found(model, "2026-01-14.3", "bf16", [score, None]), top_k)
    found = LookupResponse.FromString(raw)
    assert [it.id for it in found.results] == ["a", "b"]
    assert found.results[0].result == expected
    assert not found.results[1].HasField("result")
    assert (found.release, found.ds, found.precision, found.model) == (model.release, "2026-01-14", "bf16", "tiny")
