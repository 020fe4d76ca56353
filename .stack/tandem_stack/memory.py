"""How much memory the whole stack takes."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_INTERVAL_SECONDS = 2.0


@dataclass
class PeakMemory:
    """The most memory this process and all its descendants held at one time: the sum of their PSS.

    PSS shares a page's size among the processes that map it, so that forked children are not counted twice.
    """

    bytes: int = 0


@contextlib.contextmanager
def measuring() -> Iterator[PeakMemory]:
    peak, over, me = PeakMemory(), threading.Event(), psutil.Process()

    def watch() -> None:
        while not over.wait(_INTERVAL_SECONDS):
            peak.bytes = max(peak.bytes, sum(_pss(process.pid) for process in (me, *me.children(recursive=True))))

    watcher = threading.Thread(target=watch, name="memory", daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()


def _pss(pid: int) -> int:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it ended meanwhile, or this is not Linux
        return 0
    return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
