"""python -m tests.benchmarks.bench_router: what the router costs: a decision, a hop, its heartbeat, a submission.

The decision is timed in this process; the hop is the difference between a replica and a router in front of it, called
in turn; the heartbeat is one replica's among 64, alone in a process.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared_model.errors import TandemError
from tests.benchmarks import harness, replicas
from tests.benchmarks.harness import CannotMeasure, Target
from tests.benchmarks.replicas import Place
from tests.benchmarks.router import deciding, forwarding, heartbeat, submitting

ROUNDS = 3
DEFAULT_OUT = Path(".tandem/bench/router.json")
PACKAGES = ("grpcio", "redis", "protobuf", "openvino")
#: Measured and reported, and not promised: the longest that a decision may take, where it is a refusal.
WORST = "decide_all_late_p99_us"


@dataclass(frozen=True)
class Group:
    """Figures that are measured together; `make bench-router ONLY=name` measures them alone."""

    measure: Callable[[Place], Mapping[str, float]]
    targets: tuple[Target, ...]


GROUPS = {
    "decide": Group(lambda place: deciding.measure(), (Target("decide_p99_us", "us", "<= 20"),)),
    "forward": Group(forwarding.measure, (Target("forward_p50_ms", "ms", "<= 1.0"),)),
    "heartbeat": Group(heartbeat.measure, (Target("heartbeat_core_share", "core", "<= 0.01"),)),
    "submit": Group(submitting.measure, (Target("submit_per_s", "1/s", ">= 5000"),)),
}

choose = functools.partial(harness.choose, GROUPS)


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured, whatever it found: the table says which bounds do not hold. 2 when it could not."""
    args = _parser().parse_args(arguments)
    place = harness.place(PACKAGES)
    try:
        chosen = choose(args.only)
        rounds = [measure(chosen, f"round {number + 1} of {args.rounds}") for number in range(args.rounds)]
    except (CannotMeasure, TandemError) as error:
        print(f"bench-router: {error}", file=sys.stderr)
        return 2
    result = harness.result(targets(chosen), runs(rounds, chosen), place, conditions(rounds))
    result.write(args.out)
    print(f"\n{result.table()}\n\nwritten to {args.out}")
    return 0


def targets(chosen: Collection[str]) -> list[Target]:
    return [target for name in chosen for target in GROUPS[name].targets]


def measure(chosen: Sequence[str], title: str) -> dict[str, float]:
    """Figure → value of one round; what could not be measured is absent."""
    figures: dict[str, float] = {}
    with replicas.place() as place:
        for name in chosen:
            print(f"{title}: {name}", flush=True)
            try:
                figures |= GROUPS[name].measure(place)
            except CannotMeasure as error:
                print(f"  not measured: {error}", flush=True)
    return figures


def runs(rounds: Sequence[Mapping[str, float]], chosen: Collection[str]) -> dict[str, list[float]]:
    """Each promised figure's values over the rounds in which it was measured."""
    names = [target.name for target in targets(chosen)]
    return {name: [figures[name] for figures in rounds if name in figures] for name in names}


def conditions(rounds: Sequence[Mapping[str, float]]) -> dict[str, object]:
    return {WORST: [round(figures[WORST], 1) for figures in rounds if WORST in figures]}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench-router", description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    parser.add_argument("--only", default="", help=f"groups to measure, by comma, of {', '.join(GROUPS)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often; a figure is the median")
    return parser


if __name__ == "__main__":
    sys.exit(main())
