"""An encoded result holds what its scores are, as if protobuf's own setters had filled it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protos.scoring.v1.scoring_pb2 import HeadResult, Result
from protos.scoring.v1.storage_pb2 import PublishedHead, PublishedScore
from realtime_service.models.result_encoder import ResultEncoder
from shared_model.heads import Heads, HeadSpec
from shared_model.output import OutputKind, OutputSpec
from tests.shared_model.head_strategies import a_seed, heads_of_any_kind


def published(heads: Heads, seed: int) -> PublishedScore:
    """Labels in any order, and scores of which some are 0."""
    draw = np.random.default_rng(seed)
    parts = [
        {
            "labels": draw.permutation(spec.output.width) if spec.output.names else [],
            "scores": draw.normal(size=spec.output.width) * draw.integers(0, 2, spec.output.width),
            "abstained": bool(draw.integers(0, 2)),
        }
        for spec in heads.specs
    ]
    own, *others = parts
    tokens, truncated = draw.integers(0, 300), bool(draw.integers(0, 2))
    return PublishedScore(**own, tokens=tokens, truncated=truncated, heads=[PublishedHead(**it) for it in others])


def set_plainly(result: Result | HeadResult, spec: HeadSpec, part: PublishedScore | PublishedHead, k: int) -> None:
    result.abstained = part.abstained
    if not spec.output.names:
        result.vector.extend(part.scores)
        return
    for place, score in list(zip(part.labels, part.scores, strict=True))[: k if spec.output.ranked else None]:
        result.labels.add(name=spec.output.names[place], score=score)


def check(heads: Heads, score: PublishedScore, k: int) -> None:
    expected = Result(tokens=score.tokens, truncated=score.truncated)
    set_plainly(expected, heads.first, score, k)
    for spec, part in zip(heads.further, score.heads, strict=True):
        set_plainly(expected.heads[spec.name], spec, part, k)
    assert Result.FromString(ResultEncoder(heads).published(score, k).encoded()) == expected


@given(heads_of_any_kind(), a_seed(), st.integers(1, 5))
def test_a_result_is_what_setters_would_make_it(heads: Heads, seed: int, k: int) -> None:
    check(heads, published(heads, seed), k)


@given(st.lists(st.text(min_size=1, max_size=400), min_size=2, max_size=4, unique=True), a_seed())
def test_labels_may_have_any_name(names: list[str], seed: int) -> None:
    heads = Heads.of(OutputSpec(OutputKind.MULTI_LABEL, tuple(names), len(names)))
    check(heads, published(heads, seed), len(names))
