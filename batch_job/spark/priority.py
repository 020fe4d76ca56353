"""Idle priority for processes that share a host with the online service."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from batch_job.progress import log


def yield_to_others(process: int | None = None, warn: Callable[[str], None] = log) -> None:
    """Run a process, this one by default, at idle priority: on cores that are otherwise idle. Threads and processes
    that it starts later inherit it.

    Where the system has no such priority or refuses it, one line says so and the work goes on as before.
    """
    tasks, done = Path(f"/proc/{process or os.getpid()}/task"), set[str]()
    try:
        # Again for threads that started meanwhile.
        while threads := set(os.listdir(tasks)) - done:
            for thread in threads:
                # It may have ended.
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
            done |= threads
    except (AttributeError, OSError) as error:
        warn(f"TANDEM_NIGHTLY_IDLE: this system gives no idle priority ({error}); scoring competes with the service")
