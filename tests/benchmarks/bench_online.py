"""python -m tests.benchmarks.bench_online: how fast and how honest one replica is, against its own engines.

Every figure is a ratio or a limit measured in one run: a service in a process of its own, its bare engines in another,
and load from a third, sent open loop unless a figure says otherwise. Nothing is pinned to a core: service and
generator share all of them. What the generator took, and how late it sent, is reported; it comes first where it may.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared_model.errors import TandemError
from tests.benchmarks import harness, replicas
from tests.benchmarks.harness import REPOSITORY, CannotMeasure, Target
from tests.benchmarks.online import groups, load, texts
from tests.benchmarks.online.memory import memory
from tests.benchmarks.online.stage import Generators, Stage
from tests.benchmarks.online.texts import Material

ROUNDS = 3
DEFAULT_OUT = Path(".tandem/bench/online.json")
DEFAULT_DATA = REPOSITORY / "../shared/data"
PACKAGES = ("openvino", "grpcio", "tokenizers", "numpy")
#: Texts of either kind that one round sends before it meets its first again, about.
_TEXTS_A_ROUND = 4_000


@dataclass(frozen=True)
class Group:
    """Figures that are measured together; `make bench-online ONLY=name` measures them alone."""

    measure: Callable[[Stage], Mapping[str, float]]
    targets: tuple[Target, ...]


GROUPS = {
    "overhead": Group(groups.overhead, (Target("overhead_ms", "ms", "<= 0.6"),)),
    "saturation": Group(
        groups.saturation,
        (Target("saturation_of_floor", "ratio", ">= 0.90"), Target("saturation_of_engine", "ratio", ">= 0.72")),
    ),
    "poisson": Group(groups.poisson, (Target("poisson60_tail", "ratio", "<= 1"),)),
    "mixed": Group(
        groups.mixed,
        (
            Target("mixed30_p95_ms", "ms", "<= 50"),
            Target("mixed60_p95_ms", "ms", "<= 50"),
            Target("mixed30_over_alone", "ratio", "<= 3"),
            Target("mixed60_over_alone", "ratio", "<= 3"),
            Target("bulk_share30", "ratio", ">= 0.60"),
            Target("bulk_share60", "ratio", ">= 0.60"),
        ),
    ),
    "throughput": Group(
        groups.throughput,
        (Target("throughput_of_engine", "ratio", ">= 0.75"), Target("throughput_p95_ms", "ms", "<= 500")),
    ),
    "goodput": Group(
        groups.goodput,
        (
            Target("goodput30", "ratio", ">= 0.99"),
            Target("goodput60", "ratio", ">= 0.97"),
            Target("goodput90", "ratio", ">= 0.85"),
            Target("goodput200", "ratio", ">= 0.75"),
        ),
    ),
    "sleep": Group(
        groups.sleep,
        (
            Target("sleep_x2", "ratio", ">= 0.85"),
            Target("sleep_x5", "ratio", ">= 0.85"),
            Target("sleep_x10", "ratio", ">= 0.85"),
            Target("refusal_p99_ms", "ms", "<= 20"),
        ),
    ),
    # Last: what a process holds after it has served is more than what it holds after it has started.
    "memory": Group(memory, (Target("rss_mb", "MB", "<= 800"), Target("rss_switch_mb", "MB", "<= 1200"))),
}

choose = functools.partial(harness.choose, GROUPS)


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured, whatever it found: the table says which bounds do not hold. 2 when it could not."""
    args = _parser().parse_args(arguments)
    place, generators = harness.place(PACKAGES), Generators()
    try:
        chosen = choose(args.only)
        material = texts.load(_data(args.data))
        print(f"texts: {material.source}", flush=True)
        rounds = [measure(number, args.rounds, chosen, material, generators) for number in range(args.rounds)]
    except (CannotMeasure, TandemError) as error:
        print(f"bench-online: {error}", file=sys.stderr)
        return 2
    result = harness.result(targets(chosen), runs(rounds), place, conditions(material, generators))
    result.write(args.out)
    print(f"\n{result.table()}\n\nwritten to {args.out}")
    return 0


def targets(chosen: Collection[str]) -> list[Target]:
    return [target for name in chosen for target in GROUPS[name].targets]


def measure(
    number: int, rounds: int, chosen: Sequence[str], material: Material, generators: Generators
) -> dict[str, float]:
    """One round: figure → value."""
    skip = number * _TEXTS_A_ROUND
    with replicas.place() as place, Stage(place, material, generators, _say, skip) as stage:
        return measure_on(stage, chosen, f"round {number + 1} of {rounds}")


def measure_on(stage: Stage, chosen: Sequence[str], title: str) -> dict[str, float]:
    """Figure → value; what could not be measured is absent."""
    figures: dict[str, float] = {}
    for name in chosen:
        _say(f"{title}: {name}")
        try:
            figures |= GROUPS[name].measure(stage)
        except CannotMeasure as error:
            _say(f"  not measured: {error}")
    return figures


def runs(rounds: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Each figure's values over the rounds in which it was measured."""
    names = dict.fromkeys(name for figures in rounds for name in figures)
    return {name: [float(figures[name]) for figures in rounds if name in figures] for name in names}


def conditions(material: Material, generators: Generators) -> dict[str, object]:
    return {
        "texts": material.source,
        "cores": "shared by service and generator, nothing pinned",
        "generator_nice": load.favoured(),
        "generator_share_of_a_core": round(generators.share, 3),
        "generator_late_ms_p99": round(generators.late_ms, 2),
        "loads_sent_late": generators.late,
    }


def _data(given: Path | None) -> Path | None:
    """The folder to read: the one that was named, else the default one if it is there."""
    if given is not None:
        return REPOSITORY / given
    return DEFAULT_DATA if DEFAULT_DATA.is_dir() else None


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench-online", description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    parser.add_argument("--data", type=Path, help="folder of BANKING77, the IRC corpus and arrivals")
    parser.add_argument("--only", default="", help=f"groups to measure, by comma, of {', '.join(GROUPS)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often; a figure is the median")
    return parser


if __name__ == "__main__":
    sys.exit(main())
