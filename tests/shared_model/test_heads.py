"""Several heads: outputs side by side, each by its own contract."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_model.heads import Heads, HeadSpec
from shared_model.output import OutputKind, OutputSpec
from tests.shared_model.head_strategies import a_seed, heads_of_any_kind


@given(heads_of_any_kind(), st.integers(1, 4), a_seed())
def test_each_head_scores_its_own_columns_and_no_others(heads: Heads, rows: int, seed: int) -> None:
    raw = np.random.default_rng(seed).normal(0, 5, (rows, heads.width)).astype(np.float32)
    parts, start = heads.split(heads.scores(raw)), 0
    assert len(parts) == len(heads.specs)
    for spec, part in zip(heads.specs, parts, strict=True):
        end = start + spec.output.width
        np.testing.assert_array_equal(part, spec.output.scores(raw[:, start:end]))
        start = end
    assert start == heads.width == heads.scores(raw).shape[1]


@given(heads_of_any_kind(), st.integers(1, 4), a_seed())
def test_each_head_abstains_by_its_own_scores(heads: Heads, rows: int, seed: int) -> None:
    scores = heads.scores(np.random.default_rng(seed).normal(0, 2, (rows, heads.width)).astype(np.float32))
    abstained = heads.abstained(scores)
    assert abstained.shape == (rows, len(heads.specs))
    for spec, part, unsure in zip(heads.specs, heads.split(scores), abstained.T, strict=True):
        np.testing.assert_array_equal(unsure, spec.output.abstained(part))
    assert not heads.uncalibrated.abstained(scores).any()
    assert [spec.output.temperature for spec in heads.uncalibrated.specs] == [1] * len(heads.specs)


@pytest.mark.parametrize("name", ["", "Intent", "-mood", "mood-", "m" * 49, "a b", "a:b", "ä"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="head name"):
        HeadSpec(name, OutputSpec(OutputKind.EMBEDDING, (), 2))


def test_two_heads_of_one_name_are_refused() -> None:
    output = OutputSpec(OutputKind.EMBEDDING, (), 2)
    with pytest.raises(ValueError, match="each with a name of its own"):
        Heads.of(output, "mood", [HeadSpec("mood", output)])
