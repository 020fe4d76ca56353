"""What a worker asks of the system and learns from it: its priority, and which of its threads worked."""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from batch_job.progress import say

#: A thread that works for less than this share of what the busiest does is not one that computes.
_WORKING = 0.1
_TASKS = Path("/proc/self/task")


def yield_to_others(process: int | None = None, say: Callable[[str], None] = say) -> None:
    """Run a process, this one by default, at idle priority: on whatever cores nobody else wants. Threads and processes
    that it starts later inherit it.

    Where the system has no such priority or refuses it, one line says so and the work goes on as before.
    """
    tasks, done = Path(f"/proc/{process or os.getpid()}/task"), set[str]()
    try:
        # Until there are none that others have started meanwhile.
        while threads := set(os.listdir(tasks)) - done:
            for thread in threads:
                # It may have ended.
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
            done |= threads
    except (AttributeError, OSError) as error:
        say(f"TANDEM_NIGHTLY_IDLE: this system gives no idle priority ({error}); scoring competes with the service")


def idle() -> bool:
    """Whether this thread runs at idle priority."""
    return hasattr(os, "SCHED_IDLE") and os.sched_getscheduler(0) == os.SCHED_IDLE


def thread_seconds(tasks: Path = _TASKS) -> dict[str, float]:
    """Thread → seconds it has run, of this process; empty where the system does not tell."""
    seconds: dict[str, float] = {}
    for path in tasks.glob("*/schedstat"):
        try:
            seconds[path.parent.name] = int(path.read_text().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            # It has ended.
            continue
    return seconds


def busy(before: Mapping[str, float], after: Mapping[str, float]) -> int:
    """How many threads did the work of the time between; 0 where the system does not tell."""
    worked = [seconds - before.get(thread, 0.0) for thread, seconds in after.items()]
    most = max(worked, default=0.0)
    return sum(seconds >= _WORKING * most for seconds in worked) if most > 0 else 0
