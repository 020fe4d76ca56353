"""Memory of processes over hours: samples, and how much a straight line through them rises."""

import statistics
import threading
import time
from collections.abc import Mapping, Sequence

import psutil
import redis

from tests.benchmarks.harness import CannotMeasure

#: Seconds between two samples, and those that are left out at the start: caches fill, and heaps find their size.
PERIOD_SECONDS, WARM_SECONDS = 5.0, 900.0
#: (seconds, bytes)
Sample = tuple[float, float]


class Watched:
    """Samples of each process, by its name, while this context lasts. A process counts with its children."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self.samples: dict[str, list[Sample]] = {name: [] for name in pids}
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Watched":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(PERIOD_SECONDS):
            for name, process in self._processes.items():
                self.samples[name].append((time.monotonic(), proportional(process)))


def proportional(process: psutil.Process) -> float:
    """Bytes of a process and its children; what several share counts once. Raises: psutil.NoSuchProcess."""
    total = float(process.memory_full_info().pss)
    for child in process.children(recursive=True):
        try:
            total += child.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total


def account(client: "redis.Redis") -> dict[str, float]:
    """What Redis says of its memory, in megabytes, and of its keys: whether data grow, or what the allocator keeps."""
    told = client.info("memory")
    names = {"dataset": "used_memory_dataset", "clients": "mem_clients_normal", "resident": "used_memory_rss"}
    return {name: round(told[field] / 1e6, 2) for name, field in names.items()} | {"keys": client.dbsize()}


def growth(samples: Sequence[Sample], warm_seconds: float) -> float:
    """By which share of its beginning a straight line through the samples rises, those of the first seconds left out.
    Raises: CannotMeasure for fewer than ten."""
    kept = [(at, size) for at, size in samples if at - samples[0][0] >= warm_seconds]
    if len(kept) < 10:
        raise CannotMeasure(f"{len(kept)} samples of memory after {warm_seconds:.0f} s: let it run for longer")
    times, sizes = zip(*kept, strict=True)
    slope, intercept = statistics.linear_regression(times, sizes)
    begins = slope * times[0] + intercept
    return slope * (times[-1] - times[0]) / begins


def warm_seconds(seconds: float) -> float:
    """Those that are left out of a run of so many: half of a short one."""
    return min(WARM_SECONDS, seconds / 2)


def course(samples: Sequence[Sample], parts: int = 12) -> list[float]:
    """Megabytes, the means of so many equal parts of the time: a reader sees whether a rise has ended. Fewer where
    there are fewer samples."""
    size = max(1, len(samples) // parts)
    return [
        round(statistics.fmean(held for _, held in samples[at : at + size]) / 1e6, 1)
        for at in range(0, len(samples), size)
    ]
