"""Groups of figures, measured round by round: what all benchmarks that do so have in common."""

import argparse
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from shared_model.errors import TandemError
from tests.benchmarks import harness
from tests.benchmarks.harness import REPOSITORY, CannotMeasure, Place, Target

Stage = TypeVar("Stage")

#: Figure → its value in one round.
Round = dict[str, float]

#: Of the texts that benchmarks read.
DEFAULT_DATA = REPOSITORY / "../shared/data"


@dataclass(frozen=True)
class Group(Generic[Stage]):
    """Figures that are measured together; `make bench-… ONLY=name` measures them alone. `once`: in the first round
    only."""

    measure: Callable[[Stage], Mapping[str, float]]
    targets: tuple[Target, ...]
    once: bool = False


@dataclass(frozen=True)
class Measured:
    """The measured figures of a benchmark. `conditions`: other facts that a reader needs."""

    targets: Sequence[Target]
    rounds: Sequence[Round]
    conditions: Mapping[str, object]


def parser(
    program: str, description: str | None, out: Path, groups: Collection[str], rounds: int
) -> argparse.ArgumentParser:
    """The arguments that all have; `out` and `rounds` are defaults."""
    made = argparse.ArgumentParser(prog=program, description=description)
    made.add_argument("--out", type=Path, default=out, help="JSON file to write")
    made.add_argument("--only", default="", help=f"groups to measure, by comma, of {', '.join(groups)}")
    made.add_argument("--rounds", type=int, default=rounds, help="how often; a figure is the median")
    return made


def report(program: str, out: Path, place: Place, measure: Callable[[], Measured]) -> int:
    """Write and print what `measure` found: 0, also where bounds do not hold, which the table says. 2 where it could
    not measure."""
    try:
        found = measure()
    except (CannotMeasure, TandemError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    result = harness.result(found.targets, runs(found.rounds), place, found.conditions)
    result.write(out)
    print(f"\n{result.table()}\n\nwritten to {out}")
    return 0


def choose(groups: Collection[str], only: str) -> list[str]:
    """Names of groups in their order, all of them where `only`, names by comma, is empty.

    Raises: CannotMeasure for a name there is no group of.
    """
    wanted = [name.strip() for name in only.split(",") if name.strip()] or list(groups)
    if unknown := sorted(set(wanted) - set(groups)):
        raise CannotMeasure(f"ONLY: there is no group {', '.join(unknown)}; choose of {', '.join(groups)}")
    return [name for name in groups if name in wanted]


def targets(groups: Mapping[str, Group[Stage]], chosen: Collection[str]) -> list[Target]:
    return [target for name in chosen for target in groups[name].targets]


def due(groups: Mapping[str, Group[Stage]], chosen: Sequence[str], number: int) -> list[str]:
    """Of the groups that were chosen, those of round `number`, from 0."""
    return [name for name in chosen if number == 0 or not groups[name].once]


def measure_on(stage: Stage, groups: Mapping[str, Group[Stage]], chosen: Sequence[str], title: str) -> Round:
    """Figures that could not be measured are absent. Each is printed at once: rounds of hours may be cut off."""
    figures: Round = {}
    for name in chosen:
        say(f"{title}: {name}")
        try:
            found = groups[name].measure(stage)
        except CannotMeasure as error:
            say(f"  not measured: {error}")
            continue
        for figure, value in found.items():
            say(f"  {figure}: {value:.4g}")
        figures |= found
    return figures


def runs(rounds: Sequence[Round]) -> dict[str, list[float]]:
    """Each figure's values over the rounds in which it was measured."""
    names = dict.fromkeys(name for figures in rounds for name in figures)
    return {name: [float(figures[name]) for figures in rounds if name in figures] for name in names}


def data_folder(given: Path | None) -> Path | None:
    """The folder to read: the one that was named, else the default one if it is there."""
    if given is not None:
        return REPOSITORY / given
    return DEFAULT_DATA if DEFAULT_DATA.is_dir() else None


def say(line: str) -> None:
    print(line, flush=True)
