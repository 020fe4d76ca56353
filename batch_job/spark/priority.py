"""Idle priority for processes that share a host with the online service."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from batch_job.progress import say


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
