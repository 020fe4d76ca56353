"""Runs h2load, reads what it says, and checks that every call was answered.

h2load counts a gRPC refusal, whose HTTP status is 200, as a success. A refusal carries no message, so the bytes of all
messages must be those of as many answers; only calls that are under way at either end of a run may miss.
"""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.peers import environments
from tests.load.calls import quantile

#: How much a Tandem answer, which tells its times, may differ in size from another.
_SIZE_SPREAD = 0.05
_REQUESTS = re.compile(r"requests: (\d+) total, .* (\d+) succeeded, (\d+) failed, (\d+) errored")
_DATA = re.compile(r"\((\d+)\) data$", re.M)


@dataclass(frozen=True)
class Target:
    """A server as h2load meets it. `body`: the request's file; `answer_bytes`: of an answer; `grpc`: else HTTP/1."""

    url: str
    body: Path
    answer_bytes: int
    grpc: bool = True


@dataclass(frozen=True)
class Row:
    """Answers per second, and the calls: their milliseconds, and when they ended, in seconds since 1970."""

    rate: float
    milliseconds: Sequence[float]
    ends: Sequence[float] = ()

    def p(self, share: float) -> float:
        return quantile(self.milliseconds, share)


def closed(target: Target, connections: int, seconds: float) -> Row:
    """One call in flight on each connection."""
    return _run(target, connections, ["-D", _ms(seconds)], cut=connections)


def evenly(target: Target, connections: int, rate: float, seconds: float) -> Row:
    """So many calls a second, dealt to the connections, which begin theirs at the same moments, 10 ms apart or more."""
    return _run(target, connections, ["-D", _ms(seconds), f"--rps={rate / connections:g}"], cut=connections)


def burst(target: Target, calls: int) -> Row:
    """So many calls at once, each on its connection."""
    return _run(target, calls, ["-n", str(calls)], cut=0)


def _run(target: Target, connections: int, how: Sequence[str], cut: int) -> Row:
    """`cut`: calls that the end of the run may cut short. Raises: CannotMeasure where a call failed or was refused."""
    kind = ["content-type: application/grpc", "te: trailers"] if target.grpc else ["content-type: application/json"]
    headers = [argument for header in kind for argument in ("-H", header)]
    with tempfile.NamedTemporaryFile("r") as log:
        command = [
            environments.h2load(),
            "-t1",
            "-m1",
            f"-c{connections}",
            "-d",
            str(target.body),
            *headers,
            *how,
        ]
        command += [f"--log-file={log.name}", *([] if target.grpc else ["--h1"]), target.url]
        printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        calls = [(int(start), int(took)) for start, _, took in (line.split("\t")[:3] for line in log)]
    found, data = _REQUESTS.search(printed), _DATA.search(printed)
    if not (found and data and calls):
        raise CannotMeasure(f"h2load got no answer of {target.url}")
    if int(found[3]) or int(found[4]):
        raise CannotMeasure(f"{target.url}: {found[3]} calls failed, {found[4]} were errors")
    if target.grpc:
        check_answers(int(data[1]), len(calls) - cut, target.answer_bytes)
    seconds = (max(start + took for start, took in calls) - min(start for start, _ in calls)) / 1e6
    ends = [(start + took) / 1e6 for start, took in calls]
    return Row(len(calls) / seconds, [took / 1000 for _, took in calls], ends)


def _ms(seconds: float) -> str:
    return f"{round(1000 * seconds)}ms"


def check_answers(data_bytes: int, calls: int, answer_bytes: int) -> None:
    """Raises: CannotMeasure where the messages have too few bytes for as many answers."""
    least = (1 - _SIZE_SPREAD) * answer_bytes * calls
    if data_bytes < least:
        raise CannotMeasure(f"{calls} calls brought {data_bytes} bytes, answers have {least:.0f}: some were refused")
