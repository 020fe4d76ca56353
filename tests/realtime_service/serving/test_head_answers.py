"""Answers of several heads, from raw scores to the client's values: from a device and from a published score."""

from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protos.scoring.v1.scoring_pb2 import ScoreResponse
from protos.scoring.v1.storage_pb2 import PublishedHead, PublishedScore
from realtime_service.client import answers as client
from realtime_service.execution.device import Computed
from realtime_service.models.registry import Model
from realtime_service.routing.policy import Decision
from realtime_service.serving import answer
from realtime_service.serving.answer import Answer
from realtime_service.serving.score_response import score_response
from shared_model.encoding import Encoding
from shared_model.heads import Heads
from shared_model.types import TOP_K, Precision, Score, ServingPath
from tests.shared_model.head_strategies import a_seed, heads_of_any_kind

HERE = Decision(ServingPath.LATENCY, "here", "because")


def model(heads: Heads) -> Model:
    return Model("r-1", heads, cast(Any, None), {})


def on_the_wire(answered: Answer) -> tuple[Score, ...]:
    return client.answer(ScoreResponse.FromString(score_response(answered, "id"))).results


def from_device(heads: Heads, rows: np.ndarray, k: int) -> Answer:
    computed = [Computed(row, Precision.INT8, len(rows), 0.0, 0.0) for row in rows]
    encodings = [Encoding(np.ones(3, np.int32), truncated=False)] * len(rows)
    return answer.computed(model(heads), encodings, computed, HERE, k)


def as_published(heads: Heads, row: np.ndarray) -> PublishedScore:
    kept = []
    for spec, part in zip(heads.specs, heads.split(row[None]), strict=True):
        indices, scores = spec.output.best(part, TOP_K)
        labels, abstained = indices[0] if spec.output.names else [], spec.output.abstained(part)[0]
        kept.append({"labels": labels, "scores": scores[0], "abstained": abstained})
    own, *others = kept
    return PublishedScore(**own, tokens=3, heads=[PublishedHead(**other) for other in others])


@given(heads_of_any_kind(), a_seed(), st.integers(1, 3), st.integers(1, TOP_K))
def test_a_client_reads_of_each_head_what_its_own_release_would_answer(
    heads: Heads, seed: int, rows: int, k: int
) -> None:
    scores = heads.scores(np.random.default_rng(seed).normal(0, 3, (rows, heads.width)).astype(np.float32))
    together = on_the_wire(from_device(heads, scores, k))
    for place, (spec, part) in enumerate(zip(heads.specs, heads.split(scores), strict=True)):
        alone = on_the_wire(from_device(Heads.of(spec.output), part, k))
        for result, own in zip(together, alone, strict=True):
            found = result if place == 0 else result.heads[spec.name]
            assert (found.labels, found.vector) == (own.labels, own.vector)
            assert len(result.heads) == len(heads.specs) - 1


@given(heads_of_any_kind(), a_seed(), st.integers(1, TOP_K))
def test_a_published_score_answers_as_the_device_does(heads: Heads, seed: int, k: int) -> None:
    scores = heads.scores(np.random.default_rng(seed).normal(0, 3, (1, heads.width)).astype(np.float32))
    stored = PublishedScore.FromString(as_published(heads, scores[0]).SerializeToString())
    published, computed = answer.published(model(heads), [stored], HERE, k), from_device(heads, scores, k)
    assert on_the_wire(published) == on_the_wire(computed)
    assert (published.every is None) == any(spec.output.ranked and spec.output.width > TOP_K for spec in heads.specs)
    if published.every is not None:
        np.testing.assert_array_equal(published.every, scores)
