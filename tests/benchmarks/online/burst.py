"""Bursts: open-loop arrivals that come together, and what becomes of them against one ideal queue.

Each row is sent twice: to the service, and to an echo server, which shows what client and transport do by themselves.
A client that sent late, or an echo that was late, makes a row invalid; it is repeated, and the repetition counted.
"""

import contextlib
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tests.benchmarks import replicas
from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.online import burst_rows
from tests.benchmarks.online.burst_rows import Lane, Row, Seen
from tests.benchmarks.online.stage import SETTINGS, Stage
from tests.load import arrivals, capacity, echo
from tests.load.calls import LATE_MS, Calls, quantile
from tests.load.child import Child
from tests.load.plans import Plan

#: Share of evenly spaced calls that are answered in time at the capacity, which is at least a share of the rate of a
#: closed loop.
_CAPACITY_IN_TIME, _CAPACITY_OF_CLOSED = 0.99, 0.85
_CLOSED_SECONDS, _SINGLES = 5.0, 500
#: Share of the calls of an echo replay that may exceed the timeout.
_ECHO_LATE = 0.001
_TRIES = 3
_TEXTS = 5_000
#: Bytes of a typical answer.
_REPLY_BYTES = 220
_LATE = re.compile(r'^tandem_requests_total{.*outcome="late".*} (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class Service:
    """Of the service under test: addresses of gRPC and of its metrics."""

    address: str
    metrics: str

    def late(self) -> int:
        """Answers that it has counted as late."""
        with urllib.request.urlopen(self.metrics, timeout=10) as page:  # noqa: S310 - an address of our own
            return round(sum(map(float, _LATE.findall(page.read().decode()))))


def burst(stage: Stage) -> dict[str, float]:
    """Raises: CannotMeasure where a row was invalid each time that it was tried."""
    rows = burst_rows.rows(stage.choice.rows, stage.material.is_recorded)
    if not stage.material.is_recorded:
        stage.say("no recorded arrivals: their rows are skipped; DATA=DIR with arrivals/conversation.csv has them")
    lanes = {timeout: _lane(stage, timeout) for timeout in sorted({row.timeout_ms for row in rows})}
    with Child("tests.load.echo", str(_REPLY_BYTES)) as echoing:
        tried = {row.name: _seen(stage, row, lanes[row.timeout_ms], echoing.opened["address"]) for row in rows}
    seen = [it for it in tried.values() if it]
    stage.say(burst_rows.table(seen))
    if invalid := [name for name, it in tried.items() if not it]:
        raise CannotMeasure(f"{', '.join(invalid)}: client or echo was late each time; the machine is too busy")
    guarded = [it for it in seen if it.row.admission]
    found = {"burst_miscount": max(it.miscount for it in seen)}
    if guarded:
        found["burst_of_bound"] = min(
            *(it.of_bound for it in guarded),
            *(lane.capacity / lane.closed / _CAPACITY_OF_CLOSED for lane in lanes.values()),
        )
        found["burst_late_share"] = max(it.late_share for it in guarded)
        found["burst_refusal_over_echo_ms"] = max(it.refusal_over_echo_ms for it in guarded)
    return found


def _lane(stage: Stage, timeout_ms: int) -> Lane:
    """Of the lane that calls of this timeout take, in the same run as the rows. Raises: CannotMeasure."""
    texts, seconds = stage.interactive(_TEXTS), stage.choice.row_seconds
    plan = Plan(address=stage.address, texts=texts, seconds=seconds, timeout_ms=timeout_ms, patient=True)

    def holds(rate: float) -> bool:
        due = arrivals.evenly(rate, seconds)
        calls = stage.run(f"{rate:.0f}/s evenly, {timeout_ms} ms", replace(plan, due=due.tolist()))
        return stage.measured("in time", float(np.mean(calls.from_sent_ms <= timeout_ms))) >= _CAPACITY_IN_TIME

    loop = replace(plan, seconds=_CLOSED_SECONDS, in_flight=stage.saturating)
    calls = stage.run(f"closed loop, {timeout_ms} ms", loop)
    closed = calls.rate(calls.due[0] + 1, calls.due[0] + _CLOSED_SECONDS)
    highest = capacity.highest(closed * _CAPACITY_OF_CLOSED, holds)
    if highest is None:
        raise CannotMeasure(f"no rate of evenly spaced calls with {timeout_ms} ms was answered in time")
    singles = stage.run("one at a time", replace(plan, texts=texts[:_SINGLES], seconds=60.0, once=True))
    base_ms = quantile(singles.from_sent_ms.tolist(), 0.99) - 1000 / highest
    stage.say(f"  {timeout_ms} ms: closed loop {closed:.0f}/s, capacity {highest:.0f}/s, base {base_ms:.1f} ms")
    return Lane(closed, highest, base_ms)


def _seen(stage: Stage, row: Row, lane: Lane, echo_address: str) -> Seen | None:
    """None after several invalid tries."""
    seconds = stage.choice.row_seconds
    due = row.due(lane.capacity * row.percent / 100, seconds, stage.choice.seed, stage.material.recorded)
    texts, patient = stage.interactive(min(len(due), _TEXTS)), not row.tight
    with _service(stage, row) as service:
        plan = Plan(
            address=service.address,
            texts=texts,
            seconds=seconds,
            due=due.tolist(),
            timeout_ms=row.timeout_ms,
            patient=patient,
        )
        for tries in range(1, _TRIES + 1):
            echoed = stage.run(f"{row.name}, echo", replace(plan, address=echo_address, method=echo.PATH))
            before = service.late()
            calls = stage.run(row.name, plan)
            if not _invalid(row, calls, echoed):
                return Seen(row, lane, calls, service.late() - before, _p99(echoed), tries)
            stage.say(f"  {row.name}: invalid, {_TRIES - tries} tries left")
    return None


def _p99(calls: Calls) -> float:
    return quantile(calls.milliseconds.tolist(), 0.99)


def _invalid(row: Row, calls: Calls, echoed: Calls) -> bool:
    return calls.late_ms > LATE_MS or float(np.mean(echoed.from_sent_ms > row.timeout_ms)) > _ECHO_LATE


@contextlib.contextmanager
def _service(stage: Stage, row: Row) -> Iterator[Service]:
    if row.admission:
        yield Service(stage.address, stage.metrics)
        return
    with replicas.replica(stage.place, module="tests.load.unguarded", **SETTINGS) as running:
        yield Service(running.address, running.metrics)
