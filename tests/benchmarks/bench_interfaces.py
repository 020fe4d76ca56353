"""python -m tests.benchmarks.bench_interfaces: HTTP beside gRPC, a look-up by message id beside an echo, and tracing.

Both sides of a difference are called by h2load in turn, in one run.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks import harness, replicas, rounds
from tests.benchmarks.harness import Target
from tests.benchmarks.interfaces import looking_up, over_grpc, tracing_cost
from tests.benchmarks.peers import environments
from tests.benchmarks.replicas import Place
from tests.benchmarks.rounds import Group, Measured, Round

PROGRAM = "bench-interfaces"
ROUNDS = 3
DEFAULT_OUT = Path(".tandem/bench/interfaces.json")
PACKAGES = ("grpcio", "uvicorn", "httptools", "starlette", "orjson", "redis", "protobuf", "opentelemetry-sdk")

GROUPS: Mapping[str, Group[Place]] = {
    "http": Group(over_grpc.measure, (Target("http_over_grpc_ms", "ms", "<= 1.0"),)),
    "lookup": Group(
        looking_up.measure,
        (
            Target("lookup_over_echo_p99_ms", "ms", "<= 1.0"),
            Target("lookup_epoch_mb", "MB", f"<= {looking_up.MEGABYTES:.0f}"),
        ),
    ),
    "tracing": Group(tracing_cost.measure, (Target("tracing_cost", "share", "<= 0.03"),)),
}


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured, whatever it found: the table says which bounds do not hold. 2 when it could not."""
    args = rounds.parser(PROGRAM, __doc__, DEFAULT_OUT, GROUPS, ROUNDS).parse_args(arguments)
    return rounds.report(PROGRAM, args.out, harness.place(PACKAGES), lambda: _measured(args))


def _measured(args: argparse.Namespace) -> Measured:
    environments.h2load()
    chosen = rounds.choose(GROUPS, args.only)
    found = [_round(chosen, f"round {number + 1} of {args.rounds}") for number in range(args.rounds)]
    return Measured(rounds.targets(GROUPS, chosen), found, {})


def _round(chosen: list[str], title: str) -> Round:
    with replicas.place() as place:
        return rounds.measure_on(place, GROUPS, chosen, title)


if __name__ == "__main__":
    sys.exit(main())
