"""Memory of the service's process: after a round's load, and while it takes another release."""

import contextlib
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from shared_model.releases import pointer
from tests.benchmarks import replicas
from tests.benchmarks.online.stage import Stage

_PERIOD_SECONDS = 0.02
#: Seconds until the old release's memory is freed after its last request.
_AFTER_SECONDS = 2.0
_BYTES = 1e6
_PROCESSES = Path("/proc")


class Peak:
    """The most memory a process held while this context lasted; `megabytes` of 10^6 bytes."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._over = threading.Event()
        self.megabytes = 0.0

    def __enter__(self) -> "Peak":
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        over = False
        while not over:
            self.megabytes = max(self.megabytes, resident(self._process))
            over = self._over.wait(_PERIOD_SECONDS)


def resident(process: psutil.Process) -> float:
    """MB of one process, the shared pages of files included."""
    return _megabytes([process], "status", ("RssAnon", "RssFile"))


def proportional(processes: Iterable[psutil.Process]) -> float:
    """MB of several processes; pages that they share count once."""
    return _megabytes(list(processes), "smaps_rollup", ("Pss_Anon", "Pss_File"))


def _megabytes(processes: list[psutil.Process], source: str, fields: tuple[str, ...]) -> float:
    """With the files in memory that hold weights, whole and once, however much of them is mapped."""
    pages = 0
    for process in processes:
        lines = (_PROCESSES / str(process.pid) / source).read_text().splitlines()
        facts = dict(line.split(":", 1) for line in lines if ":" in line)
        pages += sum(int(facts[name].split()[0]) for name in fields)
    weights = {file: size for process in processes for file, size in _weights(process)}
    return (pages * 1024 + sum(weights.values())) / _BYTES


def _weights(process: psutil.Process) -> Iterable[tuple[int, int]]:
    """Number and bytes of each file."""
    for descriptor in (_PROCESSES / str(process.pid) / "fd").iterdir():
        # It may be closed meanwhile.
        with contextlib.suppress(OSError):
            if str(descriptor.readlink()).startswith("/memfd:tandem-"):
                facts = descriptor.stat()
                yield facts.st_ino, facts.st_size


def memory(stage: Stage) -> dict[str, float]:
    place, address = stage.place, stage.address
    # Capacity is asked for so that a service measured alone has served, too.
    _ = stage.capacity
    process = _serving(stage.service)
    one = resident(process)
    with Peak(process) as peak:
        pointer.promote(place.store, place.client, place.second)
        replicas.until(lambda: replicas.active(address) == place.second)
        time.sleep(_AFTER_SECONDS)
    pointer.rollback(place.store, place.client)
    return {"rss_mb": one, "rss_switch_mb": peak.megabytes}


def _serving(process: psutil.Process) -> psutil.Process:
    """The process that holds the engines: the service itself, or the first worker of a supervised one."""
    workers = [child for child in process.children() if "realtime_service.process.worker" in child.cmdline()]
    return workers[0] if workers else process
