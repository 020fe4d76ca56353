"""CPU time and memory of the processes of a night, by what they are. Servers and the benchmark itself do not count."""

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
import psutil

#: A word of a command line → what the process is. The first that is found counts.
KINDS = {
    "CoarseGrainedExecutorBackend": "executor_jvm",
    "pyspark.daemon": "workers",
    "tests.benchmarks.scale.night": "driver_python",
    "org.apache.spark.deploy.SparkSubmit": "driver_jvm",
}
DRIVER = ("driver_python", "driver_jvm")
EXECUTORS = ("executor_jvm", "workers")
_PERIOD_SECONDS = 0.5


@dataclass(frozen=True)
class Seen:
    """A process at one moment. `cpu`: seconds of user and system together. `name`: no later process has it."""

    name: tuple[int, float]
    kind: str
    cpu: float
    rss: int


@dataclass
class Usage:
    """CPU time and memory since the first look. `peak`: of the driver, JVM and Python together, in bytes."""

    peak: int = 0
    _before: dict[tuple[int, float], float] | None = None
    _last: dict[tuple[int, float], Seen] = field(default_factory=dict)
    _looks: list[tuple[float, Mapping[str, float]]] = field(default_factory=list)

    def add(self, look: Iterable[Seen], now: float) -> None:
        """A process that has ended counts as it was seen last; one that began after the first look counts whole.
        `now`: Unix time."""
        found = list(look)
        if self._before is None:
            self._before = {it.name: it.cpu for it in found}
        self._last.update({it.name: it for it in found})
        self._looks.append((now, self.cpu))
        self.peak = max(self.peak, sum(it.rss for it in found if it.kind in DRIVER))

    @property
    def cpu(self) -> Mapping[str, float]:
        """Kind → seconds."""
        used, before = dict.fromkeys(KINDS.values(), 0.0), self._before or {}
        for it in self._last.values():
            used[it.kind] += it.cpu - before.get(it.name, 0.0)
        return used

    def by_stage(self, began: float, stages: Mapping[str, float]) -> dict[str, dict[str, float]]:
        """Stage → kind → seconds of CPU. `stages`: stage → seconds that it took, one after the other since `began`."""
        ends = began + np.cumsum([0.0, *stages.values()])
        times = [at for at, _ in self._looks]
        spent = {kind: np.diff(np.interp(ends, times, [cpu[kind] for _, cpu in self._looks])) for kind in self.cpu}
        return {
            stage: {kind: float(seconds[place]) for kind, seconds in spent.items()}
            for place, stage in enumerate(stages)
        }


class Watch:
    """Looks while this context lasts, and once more at its end."""

    def __init__(self) -> None:
        self.usage = Usage()
        self._over = threading.Event()

    def __enter__(self) -> Usage:
        self._look()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self.usage

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        while not self._over.wait(_PERIOD_SECONDS):
            self._look()

    def _look(self) -> None:
        self.usage.add(look(), time.time())


def look() -> list[Seen]:
    """All processes below this one that are of a kind."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            command, times = " ".join(process.cmdline()), process.cpu_times()
            kind = next((kind for word, kind in KINDS.items() if word in command), "")
            if kind:
                name = (process.pid, process.create_time())
                found.append(Seen(name, kind, times.user + times.system, process.memory_info().rss))
        except psutil.Error:
            # It has ended meanwhile.
            continue
    return found
