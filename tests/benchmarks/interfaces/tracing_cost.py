"""The cost of tracing a tenth of all calls: one replica, whose tracing is off and on by turns.

Two processes of one program differ by some per cent, more than the bound; so it is one, on one core, and several one
after the other. The bound is over the pairs of neighbouring blocks of all.
"""

import contextlib
import math
import signal
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
from scipy import stats

from protos.scoring.v1 import scoring_pb2
from tests import otlp
from tests.benchmarks import replicas
from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.interfaces import targets
from tests.benchmarks.peers import h2load
from tests.benchmarks.peers.h2load import Target
from tests.benchmarks.peers.stage import SCORE, TEXT
from tests.benchmarks.replicas import Place
from tests.load.child import Child
from tests.realtime_service.conftest import RunningService

PROCESSES, PAIRS, SECONDS = 3, 20, 1.0
#: Of the calls of a block, so many of the slowest are those that the machine held up.
HELD_UP = 0.01
_SETTINGS = {"TANDEM_PRECOMPUTED": "false", "TANDEM_LANES": "latency"}
_SAMPLER = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}
#: Milliseconds between two exports; and seconds of calls before each block, in which the spans of the one before are
#: exported.
_EXPORTED_EVERY, _EXPORTED_WITHIN = "500", 0.6


class Block(NamedTuple):
    """Milliseconds of a call, and those of the process's CPU."""

    latency: float
    cpu: float


def measure(place: Place) -> dict[str, float]:
    """The share that tracing adds: the upper 95 % bound over the pairs, of latency or of CPU, whichever is larger.

    Raises: CannotMeasure where other blocks than those with tracing on are traced.
    """
    with Child(otlp.__name__) as collector:
        pairs = [pair for _ in range(PROCESSES) for pair in _pairs(place, collector)]
    for name, figures in zip(Block._fields, zip(*pairs, strict=True), strict=True):
        print(f"  {name}: median {_median(figures):+.2%}, upper bound {upper_bound(figures):+.2%}", flush=True)
    return {"tracing_cost": max(map(upper_bound, zip(*pairs, strict=True)))}


def upper_bound(logarithms: Sequence[float]) -> float:
    """Of the median of ratios, given as logarithms, with 95 % confidence; less 1. By ranks, so that pairs in which the
    machine changed its speed count as others do; infinity for fewer than five."""
    rank = int(stats.binom.ppf(0.95, len(logarithms), 0.5))
    return math.expm1(sorted(logarithms)[rank]) if rank < len(logarithms) else math.inf


def _median(logarithms: Sequence[float]) -> float:
    return math.expm1(statistics.median(logarithms))


def _pairs(place: Place, collector: Child) -> list[Block]:
    """The pairs of one replica: the logarithms of a block with tracing, over one without."""
    message = scoring_pb2.ScoreRequest(texts=[TEXT], priority=scoring_pb2.REAL_TIME).SerializeToString()
    traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.opened["url"], "OTEL_BSP_SCHEDULE_DELAY": _EXPORTED_EVERY}
    settings = {**_SETTINGS, **_SAMPLER, **traced}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = stack.enter_context(replicas.replica(place, "tests.load.tracing_by_turns", **settings))
        replicas.settle(running.address)
        target = targets.of_grpc(running.address, SCORE, message, folder / "body")
        h2load.closed(target, 1, 2 * SECONDS)
        replica = _Replica(running, target, collector)
        # On and off, off and on, …: what changes over time is in both.
        found = [replica.pair(on_first=number % 2 == 0) for number in range(PAIRS)]
    both = Block(*map(_median, zip(*found, strict=True)))
    print(f"  with tracing: latency {both.latency:+.1%}, CPU {both.cpu:+.1%}", flush=True)
    return found


@dataclass
class _Replica:
    """`traces`: whether its tracing is on."""

    running: RunningService
    target: Target
    collector: Child
    traces: bool = True

    def pair(self, on_first: bool) -> Block:
        """The logarithms of a block with tracing, over one without. Raises: CannotMeasure."""
        blocks = {on: self._block(on) for on in (on_first, not on_first)}
        return Block(*(math.log(on / off) for on, off in zip(blocks[True], blocks[False], strict=True)))

    def _block(self, on: bool) -> Block:
        if on is not self.traces:
            self.running.process.send_signal(signal.SIGUSR1)
            self.traces = on
        h2load.closed(self.target, 1, _EXPORTED_WITHIN)
        exports, used = self.collector.ask()["exports"], self._cpu_seconds()
        row = h2load.closed(self.target, 1, SECONDS)
        used, exports = self._cpu_seconds() - used, self.collector.ask()["exports"] - exports
        if bool(exports) is not on:
            raise CannotMeasure(f"tracing was turned {'on' if on else 'off'}, and {exports} exports came")
        calls = sorted(row.milliseconds)
        return Block(statistics.fmean(calls[: math.ceil(len(calls) * (1 - HELD_UP))]), 1000 * used / len(calls))

    def _cpu_seconds(self) -> float:
        times = psutil.Process(self.running.process.pid).cpu_times()
        return times.user + times.system
