"""python -m tests.benchmarks.bench_peers: Tandem beside other servers of the same graph, and beside a floor.

Every server has the release's INT8 graph and tokeniser and gets one text of 16 tokens a call, by h2load, in one run:
servers take turns row by row, and nothing else runs. The floor is a process for each core on one port, whose event
loop calls a fixed-shape engine itself; so has one of the two Tandems.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks import harness, replicas, rounds
from tests.benchmarks.harness import CannotMeasure, Target
from tests.benchmarks.peers import environments, h2load
from tests.benchmarks.peers.h2load import Row
from tests.benchmarks.peers.stage import AIO, DYNAMIC, FLOOR, LATENCY, PEERS, TRITON, WORKERS, Stage
from tests.benchmarks.rounds import Measured, Round

PROGRAM = "bench-peers"
ROUNDS = 3
DEFAULT_OUT = Path(".tandem/bench/peers.json")
PACKAGES = ("openvino", "grpcio", "tokenizers", "numpy")
CONNECTIONS = (1, 2, 16, 64)
#: Percent of the slowest peer's rate at 64 connections, and calls of a burst.
LOADS, BURST = (30, 60, 90, 120), 64
_BURSTS = 5

TARGETS = (
    Target("latency_c16_of_floor", "ratio", ">= 0.95"),
    Target("latency_c16_over_aio", "ratio", ">= 1.1"),
    Target("workers_c16_of_floor", "ratio", ">= 0.95"),
    Target("workers_c16_over_aio", "ratio", ">= 1.1"),
    Target("c1_over_best_peer", "ratio", ">= 1.2"),
    Target("c1_p50_of_floor", "ratio", "<= 1.0"),
    Target("dynamic_c16_over_triton", "ratio", ">= 1.0"),
    Target("dynamic_c64_over_triton", "ratio", ">= 1.0"),
    Target("c1_p99_over_p50", "ratio", "<= 1.6"),
    Target("workers_c1_p99_over_p50", "ratio", "<= 1.6"),
)
#: Server → row → figure → value in each round.
Table = dict[str, dict[str, dict[str, list[float]]]]


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured, whatever it found. 2 when it could not."""
    args = _parser().parse_args(arguments)
    place = harness.place(PACKAGES)
    return rounds.report(PROGRAM, args.out, place, lambda: measured(args, place.commit))


def measured(args: argparse.Namespace, commit: str) -> Measured:
    environments.h2load()
    table, found = kept(args.out, commit) if args.keep and args.out.exists() else (Table(), list[Round]())
    with replicas.place() as place, Stage(place) as stage:
        before = stage.unanswered()
        found += [_round(stage, args, table, number) for number in range(args.rounds)]
        if refused := stage.unanswered() - before:
            raise CannotMeasure(f"Tandem did not answer {refused:.0f} calls")
    return Measured(TARGETS, found, {"rows": table})


def kept(out: Path, commit: str) -> tuple[Table, list[Round]]:
    """Rows and rounds of earlier runs of the same commit. Raises: CannotMeasure."""
    try:
        document = json.loads(out.read_text())
        if document["commit"] != commit:
            raise CannotMeasure(f"{out} is of commit {document['commit']}, this is {commit}; remove it")
        runs = {figure["name"]: figure["runs"] for figure in document["figures"]}
        found = [dict(zip(runs, values, strict=True)) for values in zip(*runs.values(), strict=True)]
        return document["conditions"]["rows"], found
    except (ValueError, KeyError, TypeError) as error:
        raise CannotMeasure(f"{out} holds no rounds; remove it, or leave out --keep") from error


def _round(stage: Stage, args: argparse.Namespace, table: Table, number: int) -> Round:
    rounds.say(f"round {number + 1} of {args.rounds}")
    closed = {f"c{count}": _row(stage, table, f"c{count}", args.seconds, count) for count in CONNECTIONS}
    if not args.closed:
        slowest = min(closed["c64"][peer].rate for peer in PEERS)
        for percent in LOADS:
            _row(stage, table, f"{percent} %", args.seconds, max(CONNECTIONS), slowest * percent / 100)
        _bursts(stage, table)
    return figures(closed)


def figures(closed: Mapping[str, Mapping[str, Row]]) -> Round:
    """`closed`: by row and server."""
    alone, busy = closed["c1"], closed["c16"]
    return {
        "latency_c16_of_floor": busy[LATENCY].rate / busy[FLOOR].rate,
        "latency_c16_over_aio": busy[LATENCY].rate / busy[AIO].rate,
        "workers_c16_of_floor": busy[WORKERS].rate / busy[FLOOR].rate,
        "workers_c16_over_aio": busy[WORKERS].rate / busy[AIO].rate,
        "c1_over_best_peer": alone[LATENCY].rate / max(alone[peer].rate for peer in PEERS),
        "c1_p50_of_floor": alone[LATENCY].p(0.5) / alone[FLOOR].p(0.5),
        "dynamic_c16_over_triton": busy[DYNAMIC].rate / busy[TRITON].rate,
        "dynamic_c64_over_triton": closed["c64"][DYNAMIC].rate / closed["c64"][TRITON].rate,
        "c1_p99_over_p50": alone[LATENCY].p(0.99) / alone[LATENCY].p(0.5),
        "workers_c1_p99_over_p50": alone[WORKERS].p(0.99) / alone[WORKERS].p(0.5),
    }


def _row(
    stage: Stage, table: Table, name: str, seconds: float, connections: int, rate: float | None = None
) -> dict[str, Row]:
    """One row, of all servers in turn. `rate`: open loop, calls a second; else closed."""
    found = {}
    for server, target in stage.targets.items():
        h2load.closed(target, connections, seconds / 8)
        if rate is None:
            found[server] = h2load.closed(target, connections, seconds)
        else:
            found[server] = h2load.evenly(target, connections, rate, seconds)
        _note(table, server, name, found[server])
    return found


def _bursts(stage: Stage, table: Table) -> None:
    for server, target in stage.targets.items():
        calls = [ms for _ in range(_BURSTS) for ms in h2load.burst(target, BURST).milliseconds]
        _note(table, server, "burst", Row(0.0, calls))


def _note(table: Table, server: str, name: str, row: Row) -> None:
    values = {"rate": row.rate, "p50_ms": row.p(0.5), "p99_ms": row.p(0.99)}
    rounds.say(f"  {name:>6} {server:<22} {row.rate:7.1f}/s  p50 {row.p(0.5):7.2f}  p99 {row.p(0.99):7.2f} ms")
    for figure, value in values.items():
        table.setdefault(server, {}).setdefault(name, {}).setdefault(figure, []).append(round(value, 3))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often; a figure is the median")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row")
    parser.add_argument("--keep", action="store_true", help="add to the rounds that --out holds: run them in pieces")
    parser.add_argument("--closed", action="store_true", help="only the rows of 1 to 64 connections")
    return parser


if __name__ == "__main__":
    sys.exit(main())
