"""The profile of each figure, which shows its limit: shares of the cores while a load runs."""

import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields

import numpy as np
import psutil

from tests.benchmarks.online.slow_cores import SlowCores
from tests.load.calls import Calls, quantile


@dataclass(frozen=True)
class CpuShares:
    """Of one core, on average over a load; the machine's other processes have what is left. `event_loop`, `engines`: of
    the service; all its threads but the event loops' count as engines', which take almost all of that. A text that
    needs all cores is run by the event loop itself. `calls`: that ended, a second. `slow`: share of the time in which
    the host let cores compute at less than a third of their speed."""

    event_loop: float
    engines: float
    generators: float
    idle: float
    calls: float
    slow: float

    @staticmethod
    def median(several: "Sequence[CpuShares]") -> dict[str, float]:
        columns = zip(*map(astuple, several), strict=True)
        return {it.name: round(quantile(column, 0.5), 3) for it, column in zip(fields(CpuShares), columns, strict=True)}

    def __str__(self) -> str:
        cores = ("event_loop", "engines", "generators", "idle")
        shares = (f"{name.replace('_', ' ')} {asdict(self)[name]:.2f}" for name in cores)
        return f"{', '.join(shares)}; {self.calls:.0f} calls a second; cores slow for {self.slow:.1%} of the time"


class Watch:
    """Use as a context, for as long as a load lasts. `service`: a process, and with it its workers."""

    def __init__(self, service: psutil.Process) -> None:
        self.slow_cores = SlowCores()
        self._processes = [service, *service.children(recursive=True)]

    def __enter__(self) -> "Watch":
        self._began, self._before = time.monotonic(), self._taken()
        self.slow_cores.start()
        return self

    def __exit__(self, *_: object) -> None:
        # First: a service that has ended is an error below, and no thread is to outlive it.
        self.slow_cores.stop()
        self._seconds, self._after = time.monotonic() - self._began, self._taken()

    def shares(self, loads: Sequence[Calls]) -> CpuShares:
        """After all these."""
        generators, ended = sum(it.cpu_seconds for it in loads), sum(np.isfinite(it.ended).sum() for it in loads)
        event_loop, engines, idle = (after - before for before, after in zip(self._before, self._after, strict=True))
        rates = [it / self._seconds for it in (event_loop, engines, generators, idle, ended)]
        return CpuShares(*[*rates, self.slow_cores.share])

    def _taken(self) -> tuple[float, float, float]:
        """Seconds of CPU so far: of event loops, which run in main threads, of all other threads, and of idle cores."""
        event_loops = sum(
            it.user_time + it.system_time for one in self._processes for it in one.threads() if it.id == one.pid
        )
        of_all = sum(it.user + it.system for it in (one.cpu_times() for one in self._processes))
        cores = psutil.cpu_times()
        return event_loops, of_all - event_loops, cores.idle + getattr(cores, "iowait", 0.0)
