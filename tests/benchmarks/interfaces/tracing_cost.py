"""The cost of tracing a tenth of all calls: a replica that does beside one that does not, called in turn.

Two processes of one program differ by a per cent or two, so several pairs are started; the bound is over pairs.
"""

import contextlib
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from scipy import stats

from protos.scoring.v1 import scoring_pb2
from tests import otlp
from tests.benchmarks import replicas
from tests.benchmarks.interfaces import targets
from tests.benchmarks.peers import h2load
from tests.benchmarks.peers.h2load import Target
from tests.benchmarks.peers.stage import SCORE, TEXT
from tests.benchmarks.replicas import Place
from tests.load.child import Child
from tests.realtime_service.conftest import RunningService

PAIRS, BLOCKS, SECONDS = 5, 6, 1.5
#: Of the calls of a block, so many of the slowest are those that the machine held up.
HELD_UP = 0.01
#: One core of a call: with two, each process decides by its own timings whether a text alone takes both.
_SETTINGS = {"TANDEM_PRECOMPUTED": "false", "TANDEM_LANES": "latency", "TANDEM_WORKERS": "1", "TANDEM_THREADS": "1"}
_SAMPLER = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}


class Block(NamedTuple):
    """Milliseconds of a call, and those of the process's CPU."""

    latency: float
    cpu: float


def measure(place: Place) -> dict[str, float]:
    """The share that tracing adds: the upper 95 % bound over the pairs, of latency or of CPU, whichever is larger."""
    with Child(otlp.__name__) as collector:
        traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.opened["url"], **_SAMPLER}
        pairs = [_pair(place, traced) for _ in range(PAIRS)]
    latency, cpu = (upper_bound(figures) for figures in zip(*pairs, strict=True))
    print(f"  upper bounds: latency {latency:+.2%}, CPU {cpu:+.2%}", flush=True)
    return {"tracing_cost": max(latency, cpu)}


def upper_bound(logarithms: Sequence[float]) -> float:
    """Of the mean of ratios, given as logarithms, with 95 % confidence; less 1."""
    error = statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    return math.expm1(statistics.fmean(logarithms) + float(stats.t.ppf(0.95, len(logarithms) - 1)) * error)


def _pair(place: Place, traced: dict[str, str]) -> Block:
    """The logarithms of what a replica with tracing takes, over what one without takes: medians over the blocks."""
    message = scoring_pb2.ScoreRequest(texts=[TEXT], priority=scoring_pb2.REAL_TIME).SerializeToString()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = [stack.enter_context(replicas.replica(place, **_SETTINGS, **more)) for more in ({}, traced)]
        for replica in running:
            replicas.settle(replica.address)
        called = [
            (replica, targets.of_grpc(replica.address, SCORE, message, folder / f"{number}"))
            for number, replica in enumerate(running)
        ]
        for _, target in called:
            h2load.closed(target, 1, 2 * SECONDS)
        found = list[Block]()
        for number in range(BLOCKS):
            order = called if number % 2 else called[::-1]
            blocks = {replica.address: _block(replica, target) for replica, target in order}
            off, on = (blocks[replica.address] for replica in running)
            found.append(Block(math.log(on.latency / off.latency), math.log(on.cpu / off.cpu)))
    both = Block(*(statistics.median(figures) for figures in zip(*found, strict=True)))
    print(f"  with tracing: latency {math.expm1(both.latency):+.1%}, CPU {math.expm1(both.cpu):+.1%}", flush=True)
    return both


def _block(replica: RunningService, target: Target) -> Block:
    before = _cpu_seconds(replica)
    row = h2load.closed(target, 1, SECONDS)
    used, calls = _cpu_seconds(replica) - before, sorted(row.milliseconds)
    return Block(statistics.fmean(calls[: math.ceil(len(calls) * (1 - HELD_UP))]), 1000 * used / len(calls))


def _cpu_seconds(replica: RunningService) -> float:
    process = psutil.Process(replica.process.pid)
    times = [it.cpu_times() for it in (process, *process.children(recursive=True))]
    return sum(it.user + it.system for it in times)
