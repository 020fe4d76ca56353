"""The benchmarks' harness: bounds are held, what was not measured is absent."""

import json
import subprocess
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from tests.benchmarks import harness
from tests.benchmarks.harness import REPOSITORY, Place, Target

RATE = Target("rate", "rows/s", ">= 0.990")
TIME = Target("time", "s", "<= 180")
HERE = Place({"cores": 2}, {"python": "3.11"}, "abc", "2026-11-23")


@pytest.mark.parametrize(
    ("bound", "value", "holds"),
    [
        (">= 0.990", 0.990, True),
        (">= 0.990", 0.9899, False),
        ("<= 180", 180.0, True),
        ("<= 180", 180.1, False),
        ("<= -0.5", -0.4, False),
    ],
)
def test_a_bound_holds_or_not(bound: str, value: float, holds: bool) -> None:
    assert Target("figure", "s", bound).holds(value) == holds


@pytest.mark.parametrize("bound", ["", "0.99", "> 0.99", "≥ 0.99", ">=0.99", ">= 99 %", ">= nan"])
def test_a_bound_that_cannot_be_read_is_refused(bound: str) -> None:
    with pytest.raises(ValueError, match="figure: bound"):
        Target("figure", "s", bound)


def test_a_figure_is_the_median_of_its_runs() -> None:
    (figure,) = harness.result([TIME], {"time": [200.0, 10.0, 170.0]}, HERE).figures
    assert (figure.value, figure.holds, figure.runs) == (170.0, True, (200.0, 10.0, 170.0))


def test_what_was_not_measured_is_absent_and_not_met(tmp_path: Path) -> None:
    result = harness.result([RATE, TIME], {"rate": [], "time": [12.0]}, HERE)
    result.write(tmp_path / "deep" / "out.json")
    document = json.loads((tmp_path / "deep" / "out.json").read_text())
    assert document == {
        "machine": {"cores": 2},
        "versions": {"python": "3.11"},
        "commit": "abc",
        "date": "2026-11-23",
        "figures": [{"name": "time", "value": 12.0, "unit": "s", "bound": "<= 180", "holds": True, "runs": [12.0]}],
    }
    assert "not measured" in line_of(result.table(), "rate")
    assert " NO" in line_of(result.table(), "rate")
    assert " yes " in line_of(result.table(), "time")


def test_conditions_are_written_where_there_are_any() -> None:
    assert harness.result([TIME], {}, HERE, {"texts": "our own"}).to_document()["conditions"] == {"texts": "our own"}


def test_the_table_says_which_bounds_do_not_hold() -> None:
    result = harness.result([RATE, TIME], {"rate": [0.5], "time": [12.0]}, HERE)
    assert " NO " in line_of(result.table(), "rate")


def test_a_figure_nobody_promised_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no target is named speed"):
        harness.result([RATE], {"speed": [1.0]}, HERE)


@pytest.mark.heavy
def test_the_place_names_machine_versions_and_commit() -> None:
    here = harness.place(["openvino"])
    assert here.machine["cores"] >= 1
    assert set(here.versions) == {"python", "openvino"}
    assert json.dumps(here.machine)
    assert date.fromisoformat(here.date) <= datetime.now(UTC).date()
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert here.commit.removesuffix("-dirty") == (head.stdout.strip() or "unknown")


def line_of(table: str, figure: str) -> str:
    (line,) = [line for line in table.splitlines() if line.startswith(figure)]
    return line
