"""Measures of a service under attack, and the promises that they break: no I/O."""

from collections.abc import Iterator
from dataclasses import dataclass

#: Share of the good caller's calls that are answered in time.
IN_TIME = 0.99
#: The good caller's p99, over its p99 beside valid calls.
P99_RATIO = 2.0
#: Longest callback of the event loop, in milliseconds of its thread's CPU time.
CALLBACK_MS = 50.0
#: How much longer than beside valid calls a call may wait until it is accepted (p99).
ACCEPT_MS = 50.0
#: Growth of the service's memory over what valid calls cost.
GROWTH_MB = 64.0


@dataclass(frozen=True)
class Seen:
    """One run. `calls`: of the good caller; `in_time`: the share of them that was answered in time; `p99_ms`: of their
    answers; `accept_ms`: p99 of a health check, which waits for nothing but to be accepted; `callback_ms`: CPU time of
    the event loop's longest callback; `growth_mb`: highest memory above that before the run; `sent` messages,
    `bytes_per_second`, `connections`: of the disturber; `failed`: its calls without an answer; `wrong`: those of them
    that ended with a status that no input may cause, by status."""

    calls: int
    in_time: float
    p99_ms: float
    accept_ms: float
    callback_ms: float
    growth_mb: float
    sent: int
    bytes_per_second: float
    connections: int
    failed: int = 0
    wrong: tuple[tuple[str, int], ...] = ()


def steady(seen: Seen) -> Iterator[str]:
    """Broken promises that do not depend on the machine's speed."""
    if seen.callback_ms > CALLBACK_MS:
        yield f"a callback used {seen.callback_ms:.0f} ms, at most {CALLBACK_MS:.0f}"
    yield from (f"{count} calls ended {status}" for status, count in seen.wrong)


def broken(seen: Seen, control: Seen) -> Iterator[str]:
    """All broken promises. `control`: valid calls at the same rate of bytes instead of the attack."""
    yield from steady(seen)
    if control.failed > (1 - IN_TIME) * control.sent:
        yield f"{control.failed} of {control.sent} valid calls were not answered: there is nothing to compare with"
    if seen.in_time < IN_TIME:
        yield f"{seen.in_time:.3f} of the good caller's calls in time, at least {IN_TIME}"
    if seen.p99_ms > P99_RATIO * control.p99_ms:
        yield f"the good caller's p99 is {seen.p99_ms:.1f} ms, {control.p99_ms:.1f} beside valid calls"
    if seen.accept_ms > control.accept_ms + ACCEPT_MS:
        yield f"a call waits {seen.accept_ms:.0f} ms to be accepted, {control.accept_ms:.0f} beside valid calls"
    if seen.growth_mb > max(control.growth_mb, 0.0) + GROWTH_MB:
        yield f"memory grew by {seen.growth_mb:.0f} MB, {control.growth_mb:.0f} beside valid calls"
