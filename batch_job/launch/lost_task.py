"""Ends the driver once the Airflow task that started it is lost: the application would go on, and the next try would
score beside it. Standard library only: Airflow's environment imports this."""

import os
import select
import socket
import sys
import threading
from collections.abc import Sequence

from batch_job.launch import spark_submit

LINE = "the Airflow task that started this application is gone; its next try goes on with the shards that are finished"


def starters(*pids: int) -> str:
    """Processes of this host, as the driver's flag `--ends-with` takes them."""
    return ":".join((socket.gethostname(), *map(str, pids)))


def end_with(starters: str) -> None:
    """End this process with UNAVAILABLE as soon as one of those has ended. Does nothing where the driver has another
    host, from which they cannot be seen."""
    host, *pids = starters.split(":")
    if host == socket.gethostname():
        threading.Thread(target=_wait, args=([*map(int, pids)],), daemon=True).start()


def _wait(pids: Sequence[int]) -> None:
    ended = select.poll()
    try:
        for pid in pids:
            ended.register(os.pidfd_open(pid), select.POLLIN)
        ended.poll()
    except ProcessLookupError:
        pass  # It has ended already.
    try:
        sys.stderr.write(f"batch_job score: {LINE}\n")
        sys.stderr.flush()
    finally:
        # Its JVM ends with it. No clean-up: whatever it is at may take as long as the day.
        os._exit(spark_submit.UNAVAILABLE)
