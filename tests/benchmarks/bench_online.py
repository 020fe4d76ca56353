"""python -m tests.benchmarks.bench_online: how fast and how honest one replica is, against its own engines.

Every figure is a ratio or a limit measured in one run: a service in a process of its own, its bare engines in another,
and load from a third, sent open loop unless a figure says otherwise. Nothing is pinned to a core: service and
generator share all of them. The report has the generator's CPU time and lateness; its priority is raised if allowed.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.benchmarks import harness, replicas, rounds
from tests.benchmarks.harness import Target
from tests.benchmarks.online import groups, texts
from tests.benchmarks.online.burst import burst
from tests.benchmarks.online.cpu import CpuShares
from tests.benchmarks.online.memory import memory
from tests.benchmarks.online.stage import Choice, Generators, Stage
from tests.benchmarks.online.start import start
from tests.benchmarks.online.texts import Material
from tests.benchmarks.online.tls import tls
from tests.benchmarks.rounds import Group, Measured, Round
from tests.load import load

PROGRAM = "bench-online"
ROUNDS = 3
DEFAULT_OUT = Path(".tandem/bench/online.json")
PACKAGES = ("openvino", "grpcio", "tokenizers", "numpy")
#: Texts of either kind that one round sends before it meets its first again, about.
_TEXTS_A_ROUND = 4_000


GROUPS: Mapping[str, Group[Stage]] = {
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
            Target("goodput500", "ratio", ">= 0.75"),
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
    "burst": Group(
        burst,
        (
            Target("burst_of_bound", "ratio", ">= 1"),
            Target("burst_late_share", "ratio", "<= 0.005"),
            Target("burst_refusal_over_echo_ms", "ms", "<= 20"),
            Target("burst_miscount", "ratio", "<= 1"),
        ),
    ),
    "tls": Group(tls, (Target("tls_overhead_ms", "ms", "<= 0.3"),)),
    # Last: what a process holds after it has served is more than what it holds after it has started.
    "memory": Group(memory, (Target("rss_mb", "MB", "<= 650"), Target("rss_switch_mb", "MB", "<= 900"))),
    "start": Group(start, (Target("start_all_lanes_s", "s", "<= 5"), Target("two_workers_of_one", "ratio", "<= 1.3"))),
}


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured, whatever it found: the table says which bounds do not hold. 2 when it could not."""
    args = _parser().parse_args(arguments)
    return rounds.report(PROGRAM, args.out, harness.place(PACKAGES), lambda: _measured(args))


def _measured(args: argparse.Namespace) -> Measured:
    chosen, generators = rounds.choose(GROUPS, args.only), Generators()
    material = texts.load(rounds.data_folder(args.data))
    rounds.say(f"texts: {material.source}")
    choice = Choice(args.seed, args.rows, args.row_seconds)
    found = [_round(number, args.rounds, chosen, material, generators, choice) for number in range(args.rounds)]
    return Measured(rounds.targets(GROUPS, chosen), found, conditions(material, generators))


def _round(
    number: int, of: int, chosen: Sequence[str], material: Material, generators: Generators, choice: Choice
) -> Round:
    skip, choice = number * _TEXTS_A_ROUND, replace(choice, seed=choice.seed + number)
    with replicas.place() as place, Stage(place, material, generators, rounds.say, skip, choice) as stage:
        return rounds.measure_on(stage, GROUPS, rounds.due(GROUPS, chosen, number), f"round {number + 1} of {of}")


def conditions(material: Material, generators: Generators) -> dict[str, object]:
    return {
        "texts": material.source,
        "cores": "shared by service and generator, nothing pinned",
        "generator_nice": load.favoured(),
        "generator_share_of_a_core": round(generators.share, 3),
        "generator_late_ms_p99": round(generators.late_ms, 2),
        "loads_sent_late": generators.late,
        "of_one_core": {name: CpuShares.median(several) for name, several in generators.cores.items()},
    }


def _parser() -> argparse.ArgumentParser:
    parser = rounds.parser(PROGRAM, __doc__, DEFAULT_OUT, GROUPS, ROUNDS)
    parser.add_argument("--data", type=Path, help="folder of BANKING77, the IRC corpus and arrivals")
    parser.add_argument("--seed", type=int, default=Choice.seed, help="burst: of the arrivals; each round adds 1")
    parser.add_argument("--rows", default="", help="burst: rows by comma, like cv13-35-80; all, where empty")
    parser.add_argument("--row-seconds", type=float, default=Choice.row_seconds, help="burst: length of a row")
    return parser


if __name__ == "__main__":
    sys.exit(main())
