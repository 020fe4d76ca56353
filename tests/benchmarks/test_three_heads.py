"""The benchmark of several heads: its bound, and what it compares."""

import random

import pytest

from shared_model.commands.make_release import default_heads
from tests.benchmarks import three_heads


def test_the_bound_lies_above_the_mean_and_covers_it_in_19_of_20_cases() -> None:
    draw = random.Random(3)
    bounds = [three_heads.upper_bound([draw.gauss(0.02, 0.01) for _ in range(9)]) for _ in range(2_000)]
    assert sum(bound >= 0.02 for bound in bounds) / len(bounds) == pytest.approx(0.95, abs=0.015)
    assert three_heads.upper_bound([0.02] * 9) == pytest.approx(0.02)


def test_the_cost_is_that_of_the_dearer_path() -> None:
    measured = {three_heads.CALLS_P50: [0.01] * 9, three_heads.NIGHTLY: [0.02] * 9}
    assert three_heads.cost(measured) == pytest.approx(0.02)
    assert three_heads.ROUNDS >= 9


def test_the_heads_have_77_10_and_2_outputs() -> None:
    heads = three_heads.compared_heads()
    assert [(len(head.labels), head.weight.shape) for head in heads] == [
        (77, (77, 384)),
        (10, (10, 384)),
        (2, (2, 384)),
    ]
    assert heads[0].labels == default_heads()[0].labels
