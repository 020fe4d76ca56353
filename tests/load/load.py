"""Generators as the benchmark starts them: ready together, started together, read when they are done."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict

import safetensors.numpy

from tests.benchmarks.harness import REPOSITORY, CannotMeasure
from tests.load.calls import Calls
from tests.load.plans import Plan

#: Nice value that generators ask for: their callers would not wait for the service's cores. Only root is given it.
_FAVOURED = -10
#: Between "go" and the first call: enough for all generators to hear it.
_HEAD_START = 0.05


def run(plan: Plan) -> Calls:
    """One load alone. Raises: CannotMeasure when its generator fails."""
    (calls,) = run_together([plan], [0.0])
    return calls


def run_together(
    plans: Sequence[Plan], starts: Sequence[float], during: AbstractContextManager[object] | None = None
) -> list[Calls]:
    """Several loads at once; `starts`: seconds after the first one's start; `during`: entered while calls are sent.

    Raises: CannotMeasure.
    """
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_process()) for _ in plans]
        for process, plan in zip(processes, plans, strict=True):
            _tell(process, json.dumps(asdict(plan)))
        for process in processes:
            _expect_ready(process)
        start = time.monotonic() + _HEAD_START
        for process, after in zip(processes, starts, strict=True):
            _tell(process, str(start + after))
        with during or contextlib.nullcontext():
            return [_result(process) for process in processes]


def favoured() -> int:
    """The nice value that generators are given here."""
    with _process() as process:
        return os.getpriority(os.PRIO_PROCESS, process.pid)


@contextlib.contextmanager
def _process() -> "Iterator[subprocess.Popen[bytes]]":
    command = [sys.executable, "-m", "tests.load.generator"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _FAVOURED)
        yield process
    finally:
        process.kill()
        process.communicate()


def _tell(process: "subprocess.Popen[bytes]", line: str) -> None:
    assert process.stdin
    process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()


def _expect_ready(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdout
    if process.stdout.readline() != b"ready\n":
        raise CannotMeasure("a load generator could not start; its last lines say why")


def _result(process: "subprocess.Popen[bytes]") -> Calls:
    assert process.stdout
    written = process.stdout.read()
    if process.wait():
        raise CannotMeasure("a load generator failed; its last lines say why")
    columns = safetensors.numpy.load(written)
    arrays = {name: columns[name] for name in ("due", "sent", "ended", "status")}
    return Calls(**arrays, cpu_seconds=float(columns["cpu_seconds"]), wall_seconds=float(columns["wall_seconds"]))
