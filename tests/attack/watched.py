"""python -m tests.attack.watched serve: the service, with the long callbacks of its event loop written to a file.

A line of the file that ATTACK_CALLBACKS names: monotonic seconds, CPU seconds of the event loop's thread, the callback.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

from realtime_service.__main__ import main

VARIABLE = "ATTACK_CALLBACKS"
#: Shorter callbacks are not written.
NOTED_SECONDS = 0.02
_PERIOD_SECONDS = 0.005


def watch(path: Path) -> None:
    """CPU time of the thread, not wall time: a busy machine prolongs only the latter. It costs a system call, so it is
    read for long callbacks alone, since its last reading before: up to _PERIOD_SECONDS too much are written."""
    run = asyncio.Handle._run
    read_at, cpu = 0.0, 0.0

    def timed(handle: asyncio.Handle) -> None:
        nonlocal read_at, cpu
        began = time.monotonic()
        if began > read_at + _PERIOD_SECONDS:
            read_at, cpu = began, time.thread_time()
        run(handle)
        ended = time.monotonic()
        if ended > began + NOTED_SECONDS:
            used = time.thread_time() - cpu
            with path.open("a") as lines:
                lines.write(f"{ended} {used} {' '.join(repr(handle).split())}\n")

    asyncio.Handle._run = timed  # type: ignore[method-assign]


if __name__ == "__main__":
    watch(Path(os.environ[VARIABLE]))
    sys.exit(main(sys.argv[1:]))
