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


def watch(path: Path) -> None:
    """CPU time of the thread, not wall time: a busy machine prolongs only the latter."""
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        before = time.thread_time()
        run(handle)
        used = time.thread_time() - before
        if used > NOTED_SECONDS:
            with path.open("a") as lines:
                lines.write(f"{time.monotonic()} {used} {' '.join(repr(handle).split())}\n")

    asyncio.Handle._run = timed  # type: ignore[method-assign]


if __name__ == "__main__":
    watch(Path(os.environ[VARIABLE]))
    sys.exit(main(sys.argv[1:]))
