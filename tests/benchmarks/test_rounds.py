"""Figures measured in rounds: selected by name, absent if they cannot be measured, reported once."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.benchmarks import rounds
from tests.benchmarks.harness import CannotMeasure, Place, Target
from tests.benchmarks.rounds import Group, Measured

HERE = Place({}, {}, "")
GOOD, BAD = Target("good", "ms", "<= 1"), Target("bad", "ms", "<= 1")


def fails(stage: object) -> dict[str, float]:
    raise CannotMeasure("the load was too short")


GROUPS: Mapping[str, Group[object]] = {
    "good": Group(lambda stage: {"good": 0.5}, (GOOD,)),
    "bad": Group(fails, (BAD,), once=True),
}


def test_groups_are_chosen_by_name_and_run_in_their_own_order() -> None:
    assert rounds.choose(GROUPS, "") == ["good", "bad"]
    assert rounds.choose(GROUPS, "bad, good") == ["good", "bad"]
    with pytest.raises(CannotMeasure, match="ONLY: there is no group speed; choose of good, bad"):
        rounds.choose(GROUPS, "good,speed")


def test_what_is_measured_once_is_measured_in_the_first_round() -> None:
    assert rounds.due(GROUPS, ["good", "bad"], 0) == ["good", "bad"]
    assert rounds.due(GROUPS, ["good", "bad"], 1) == ["good"]


def test_a_group_that_cannot_be_measured_leaves_its_figures_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = rounds.measure_on(object(), GROUPS, ["bad", "good"], "round 1 of 1")
    assert figures == {"good": 0.5}
    said = capsys.readouterr().out
    assert "not measured: the load was too short" in said
    assert "  good: 0.5\n" in said
    measured = Measured([GOOD, BAD], [figures, {}, {"good": 0.7}], {"texts": "ours"})
    assert rounds.report("bench-some", tmp_path / "out.json", HERE, lambda: measured) == 0
    printed = capsys.readouterr().out.splitlines()
    assert any(line.startswith("good") and "0.5 0.7" in line for line in printed)
    assert any(line.startswith("bad") and "not measured" in line for line in printed)


def test_a_benchmark_that_cannot_measure_says_so_in_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def cannot() -> Measured:
        raise CannotMeasure("no Java")

    assert rounds.report("bench-some", tmp_path / "out.json", HERE, cannot) == 2
    assert capsys.readouterr().err == "bench-some: no Java\n"
    assert not (tmp_path / "out.json").exists()
