"""python -m tests.benchmarks.bench_router: what the router costs: a decision, a hop, its heartbeat, a submission.

The decision is timed in this process; the hop is the difference between a replica and a router in front of it, called
in turn; the heartbeat is one replica's among 64, alone in a process.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.benchmarks import harness, replicas, rounds
from tests.benchmarks.harness import Target
from tests.benchmarks.replicas import Place
from tests.benchmarks.rounds import Group, Measured, Round
from tests.benchmarks.router import deciding, forwarding, heartbeat, submitting

PROGRAM = "bench-router"
ROUNDS = 3
DEFAULT_OUT = Path(".tandem/bench/router.json")
PACKAGES = ("grpcio", "redis", "protobuf", "openvino")
#: Measured and reported, and not promised: the longest that a decision may take, where it is a refusal.
WORST = "decide_all_late_p99_us"


GROUPS: Mapping[str, Group[Place]] = {
    "decide": Group(lambda place: deciding.measure(), (Target("decide_p99_us", "us", "<= 20"),)),
    "forward": Group(forwarding.measure, (Target("forward_p50_ms", "ms", "<= 1.0"),)),
    "heartbeat": Group(heartbeat.measure, (Target("heartbeat_core_share", "core", "<= 0.01"),)),
    "submit": Group(submitting.measure, (Target("submit_per_s", "1/s", ">= 5000"),)),
}


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured, whatever it found: the table says which bounds do not hold. 2 when it could not."""
    args = _parser().parse_args(arguments)
    return rounds.report(PROGRAM, args.out, harness.place(PACKAGES), lambda: _measured(args))


def _measured(args: argparse.Namespace) -> Measured:
    chosen = rounds.choose(GROUPS, args.only)
    found = [_round(chosen, f"round {number + 1} of {args.rounds}") for number in range(args.rounds)]
    return Measured(rounds.targets(GROUPS, chosen), [promised(figures) for figures in found], conditions(found))


def _round(chosen: Sequence[str], title: str) -> Round:
    with replicas.place() as place:
        return rounds.measure_on(place, GROUPS, chosen, title)


def promised(figures: Round) -> Round:
    return {name: value for name, value in figures.items() if name != WORST}


def conditions(found: Sequence[Round]) -> dict[str, object]:
    return {WORST: [round(figures[WORST], 1) for figures in found if WORST in figures]}


def _parser() -> argparse.ArgumentParser:
    return rounds.parser(PROGRAM, __doc__, DEFAULT_OUT, GROUPS, ROUNDS)


if __name__ == "__main__":
    sys.exit(main())
