"""How much memory the whole stack takes."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil


class PeakMemory:
    """The most memory this process and all its descendants held at one time: the sum of their PSS, bytes.

    PSS shares a page's size among the processes that map it, so that forked children are not counted twice.
    """

    INTERVAL_SECONDS = 2.0

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    @contextlib.contextmanager
    def measuring(self) -> Iterator["PeakMemory"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while True:
            self.bytes = max(self.bytes, sum(_pss(process.pid) for process in (me, *me.children(recursive=True))))
            if self._stop.wait(self.INTERVAL_SECONDS):
                return


def _pss(pid: int) -> int:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it ended meanwhile, or this is not Linux
        return 0
    return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
