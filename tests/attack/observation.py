"""Watches a service while a disturber runs: a good caller, how long calls wait to be accepted, memory, CPU."""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import grpc
import numpy as np
import psutil

from tests.attack import disturbers, watched
from tests.attack.disturbers import Place
from tests.attack.oracles import Seen
from tests.benchmarks import replicas
from tests.benchmarks.harness import REPOSITORY, CannotMeasure
from tests.load import load
from tests.load.calls import OK, Calls, quantile
from tests.load.plans import Plan
from tests.realtime_service.conftest import RunningService, start_service

#: The good caller: calls a second, and how long it waits for each.
GOOD_RATE = 20.0
GOOD_TIMEOUT_MS = 99
#: Addresses that calls come from, by which the service tells callers apart; disturbers come from the usual one.
GOOD_SOURCE, PROBE_SOURCE = "127.0.0.3", "127.0.0.4"
#: Texts a second that one caller may have scored.
QUOTA = 100
_GOOD_TEXTS = ("where is my card", "my card was stolen yesterday", "how do I top up", "why was I charged twice")
_SAMPLE_SECONDS = 0.05


@dataclass(frozen=True)
class Target:
    """A service under attack. `callbacks`: where `watched` writes."""

    running: RunningService
    callbacks: Path


@dataclass(frozen=True)
class Disturbance:
    """The load beside the good caller: sent messages, their bytes, its connections, its calls without an answer, its
    seconds, and statuses that no input may cause."""

    sent: int
    bytes: int
    connections: int
    failed: int
    seconds: float
    wrong: tuple[tuple[str, int], ...]


#: Begins a disturbance of so many seconds, and returns what waits for its end.
Disturb = Callable[[Target, float], Callable[[], Disturbance]]


@contextlib.contextmanager
def target() -> Iterator[Target]:
    """One process that serves the default release, with a quota for each address."""
    with replicas.place() as place, tempfile.TemporaryDirectory(prefix="tandem-attack-") as folder:
        callbacks = Path(folder) / "callbacks"
        running = start_service(
            Path(folder) / "state",
            Path(place.store.files.root),
            module="tests.attack.watched",
            REDIS_URL=place.redis_url,
            TANDEM_QUOTA=str(QUOTA),
            **{watched.VARIABLE: str(callbacks)},
        )
        try:
            yield Target(running, callbacks)
        finally:
            running.stop()


def observe(target: Target, seconds: float, disturb: Disturb) -> Seen:
    """Raises: CannotMeasure when a process of ours fails."""
    target.callbacks.unlink(missing_ok=True)
    with _memory(target.running.process.pid) as growth:
        end = disturb(target, seconds)
        good, probe = load.run_together([_good(target, seconds), _probe(target, seconds)], [0.0, 0.0])
        found = end()
    milliseconds = good.milliseconds
    return Seen(
        calls=len(milliseconds),
        in_time=float(np.mean(milliseconds <= GOOD_TIMEOUT_MS)),
        p99_ms=quantile(milliseconds.tolist(), 0.99),
        accept_ms=quantile(_refused(probe).milliseconds.tolist(), 0.99),
        callback_ms=1000 * _longest(target.callbacks),
        growth_mb=growth() / 1e6,
        sent=found.sent,
        bytes_per_second=found.bytes / found.seconds,
        connections=found.connections,
        failed=found.failed,
        wrong=found.wrong,
    )


def attack(name: str, inputs: int) -> Disturb:
    """`inputs`: messages that a fuzzer sends at least."""
    return _disturber(name, inputs=inputs)


def valid(bytes_per_second: float, connections: int) -> Disturb:
    """Valid calls within the quota: see `disturbers.valid`."""
    return _disturber(disturbers.VALID, bytes_per_second=bytes_per_second, connections=connections)


def _disturber(name: str, **of_place: float) -> Disturb:
    def begin(target: Target, seconds: float) -> Callable[[], Disturbance]:
        running = target.running
        metrics, until = urllib.parse.urlsplit(running.metrics).netloc, time.monotonic() + seconds
        place = Place(running.address, metrics, until, **{"inputs": 0, "quota": QUOTA, **of_place})
        command = [sys.executable, "-m", "tests.attack.disturbers", name, json.dumps(asdict(place))]
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)

        def end() -> Disturbance:
            written, _ = process.communicate(timeout=3600)
            if process.returncode:
                raise CannotMeasure(f"the disturber {name} failed; its last lines say why")
            said = json.loads(written)
            wrong = tuple(map(tuple, said["wrong"]))
            return Disturbance(**{**said, "wrong": wrong})

        return end

    return begin


def _good(target: Target, seconds: float) -> Plan:
    return Plan(
        address=target.running.address,
        texts=_GOOD_TEXTS,
        seconds=seconds,
        due=np.arange(0.0, seconds, 1 / GOOD_RATE).tolist(),
        timeout_ms=GOOD_TIMEOUT_MS,
        source=GOOD_SOURCE,
    )


def _probe(target: Target, seconds: float) -> Plan:
    """Calls that are refused as soon as they are accepted, from the queue that all other calls of Score wait in."""
    due = np.arange(0.0, seconds, 1 / GOOD_RATE).tolist()
    return Plan(address=target.running.address, texts=[""], seconds=seconds, due=due, source=PROBE_SOURCE)


def _refused(calls: Calls) -> Calls:
    """Calls that count as answered by INVALID_ARGUMENT alone."""
    expected = calls.status == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    return replace(calls, status=np.where(expected, OK, grpc.StatusCode.UNKNOWN.value[0]))


def _longest(callbacks: Path) -> float:
    """Seconds; 0 when none was long enough to be written."""
    lines = callbacks.read_text().splitlines() if callbacks.exists() else []
    return max((float(line.split()[1]) for line in lines), default=0.0)


@contextlib.contextmanager
def _memory(pid: int) -> Iterator[Callable[[], int]]:
    """Samples a process's memory: a function that returns by how many bytes it grew at most."""
    process, over = psutil.Process(pid), threading.Event()
    before = process.memory_info().rss
    highest = [before]

    def sample() -> None:
        while not over.wait(_SAMPLE_SECONDS):
            highest[0] = max(highest[0], process.memory_info().rss)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield lambda: highest[0] - before
    finally:
        over.set()
        thread.join()
