"""The cost of tracing a tenth of all calls: one replica, whose tracing is off and on by turns.

Two processes of one program differ by some per cent, more than the bound, and so does one from one second to the next
where others use the machine. So it is one, on one core, its turns take a quarter of a second, and the bound is over
the pairs of neighbouring turns of several processes, one after the other. Spans are exported every 5 seconds, as by
default, in turns of both kinds: the CPU time of that thread is counted by itself, and added.
"""

import contextlib
import itertools
import math
import signal
import statistics
import subprocess
import tempfile
import time
from bisect import bisect
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from scipy import stats

from protos.scoring.v1 import scoring_pb2
from tests import otlp
from tests.benchmarks import replicas
from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.interfaces import targets
from tests.benchmarks.peers import h2load
from tests.benchmarks.peers.h2load import Row
from tests.benchmarks.peers.stage import SCORE, TEXT
from tests.benchmarks.replicas import Place
from tests.load.child import Child
from tests.load.tracing_by_turns import EXPORTER

PROCESSES, PAIRS, SECONDS = 3, 240, 0.25
#: Whether tracing is on, turn by turn: on and off, off and on, …; what changes over time is in both.
TURNS = [on for number in range(PAIRS) for on in ((True, False) if number % 2 == 0 else (False, True))]
#: Of the calls of a turn, so many of the slowest are those that the machine held up.
HELD_UP = 0.02
#: Seconds of calls before the turns, and after them.
_LEAD = 1.0
_SETTINGS = {"TANDEM_PRECOMPUTED": "false", "TANDEM_LANES": "latency"}
_SAMPLER = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}


class Moment(NamedTuple):
    """Of a replica: seconds since 1970, and those of CPU time until then, of exports and of all else."""

    time: float
    exports: float
    other: float


class Call(NamedTuple):
    """Mean milliseconds of a turn's calls, and those of CPU time, without exports."""

    latency: float
    cpu: float


class Costs(NamedTuple):
    """`pairs`: logarithms of a turn with tracing over its neighbour without; `exports`: a share of the CPU time."""

    pairs: list[Call]
    exports: float


def measure(place: Place) -> dict[str, float]:
    """The share that tracing adds: the upper 95 % bound over the pairs, of latency or of CPU, whichever is larger, and
    the exports. Raises: CannotMeasure."""
    with Child(otlp.__name__) as collector:
        found = [_costs_of_process(place, collector.opened["url"]) for _ in range(PROCESSES)]
    exports = statistics.fmean(costs.exports for costs in found)
    bounds = list[float]()
    for name, figures in zip(
        Call._fields, zip(*(it for costs in found for it in costs.pairs), strict=True), strict=True
    ):
        bounds.append(upper_bound(figures) + exports)
        print(f"  {name}: median {_median(figures) + exports:+.2%}, upper bound {bounds[-1]:+.2%}", flush=True)
    return {"tracing_cost": max(bounds)}


def upper_bound(logarithms: Sequence[float]) -> float:
    """Of the median of ratios, given as logarithms, with 95 % confidence; less 1. By ranks, so that pairs in which the
    machine changed its speed count as others do; infinity for fewer than five."""
    rank = int(stats.binom.ppf(0.95, len(logarithms), 0.5))
    return math.expm1(sorted(logarithms)[rank]) if rank < len(logarithms) else math.inf


def costs_of(moments: Sequence[Moment], row: Row) -> Costs:
    """`moments`: the begin of each of `TURNS`, and the end. A pair with a turn in which no call ended is left out."""
    turns, calls = list[Call | None](), {True: 0, False: 0}
    for on, (begin, end) in zip(TURNS, itertools.pairwise(moments), strict=True):
        ended = row.milliseconds[bisect(row.ends, begin.time) : bisect(row.ends, end.time)]
        calls[on] += len(ended)
        turns.append(Call(_mean(ended), 1000 * (end.other - begin.other) / len(ended)) if ended else None)
    pairs, untraced = list[Call](), list[float]()
    for on, one, other in zip(TURNS[::2], turns[::2], turns[1::2], strict=True):
        if one and other:
            traced, plain = (one, other) if on else (other, one)
            pairs.append(Call(*(math.log(with_it / without) for with_it, without in zip(traced, plain, strict=True))))
            untraced.append(plain.cpu)
    exports = 1000 * (moments[-1].exports - moments[0].exports) / calls[True]
    return Costs(pairs, exports / statistics.median(untraced))


def _mean(milliseconds: Sequence[float]) -> float:
    return statistics.fmean(sorted(milliseconds)[: math.ceil(len(milliseconds) * (1 - HELD_UP))])


def _median(logarithms: Sequence[float]) -> float:
    return math.expm1(statistics.median(logarithms))


def _costs_of_process(place: Place, collector: str) -> Costs:
    message = scoring_pb2.ScoreRequest(texts=[TEXT], priority=scoring_pb2.REAL_TIME).SerializeToString()
    settings = {**_SETTINGS, **_SAMPLER, "OTEL_EXPORTER_OTLP_ENDPOINT": collector}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = stack.enter_context(replicas.replica(place, "tests.load.tracing_by_turns", **settings))
        replicas.settle(running.address)
        target = targets.of_grpc(running.address, SCORE, message, folder / "body")
        for _ in range(2):
            running.process.send_signal(signal.SIGUSR1)
            h2load.closed(target, 1, _LEAD)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        calls = pool.submit(h2load.closed, target, 1, len(TURNS) * SECONDS + 2 * _LEAD)
        moments = _take_turns(running.process)
        costs = costs_of(moments, calls.result())
    both = Call(*map(_median, zip(*costs.pairs, strict=True)))
    print(f"  with tracing: latency {both.latency:+.1%}, CPU {both.cpu:+.1%}, exports {costs.exports:+.2%}", flush=True)
    return costs


def _take_turns(replica: "subprocess.Popen[str]") -> list[Moment]:
    """Raises: CannotMeasure where nothing is exported."""
    exporter, traces, begin, moments = _exporter(replica.pid), True, time.monotonic() + _LEAD, list[Moment]()
    for number, on in enumerate([*TURNS, True]):
        time.sleep(max(0.0, begin + number * SECONDS - time.monotonic()))
        if on is not traces:
            replica.send_signal(signal.SIGUSR1)
            traces = on
        moments.append(_moment(replica.pid, exporter))
    if moments[0].exports == moments[-1].exports:
        raise CannotMeasure("tracing was on, and nothing was exported")
    return moments


def _exporter(process: int) -> Path:
    for thread in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            if (thread / "comm").read_text().strip() == EXPORTER:
                return thread / "schedstat"
    raise CannotMeasure("no thread of the replica exports spans")


def _moment(process: int, exporter: Path) -> Moment:
    # The clock of another process's CPU time, as clock_getcpuclockid of glibc makes it: in nanoseconds, where psutil's
    # are hundredths of a second.
    used, exports = time.clock_gettime(~process << 3 | 2), int(exporter.read_text().split()[0]) / 1e9
    return Moment(time.time(), exports, used - exports)
