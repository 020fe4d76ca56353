"""How long a service starts until all lanes are open, and the memory of two workers beside that of one."""

import time

import psutil

from tests.benchmarks import replicas
from tests.benchmarks.online.stage import SETTINGS, Stage

_BYTES = 1e6


def start(stage: Stage) -> dict[str, float]:
    began = time.monotonic()
    with replicas.replica(stage.place, **SETTINGS, TANDEM_WORKERS="1") as running:
        seconds = time.monotonic() - began
        one = stage.measured("one worker, MB", _workers_megabytes(running.process.pid))
    with replicas.replica(stage.place, **SETTINGS, TANDEM_WORKERS="2") as running:
        two = stage.measured("two workers, MB", _workers_megabytes(running.process.pid))
    return {"start_all_lanes_s": seconds, "two_workers_of_one": two / one}


def _workers_megabytes(pid: int) -> float:
    """Of a supervised service: pages that processes share count once (PSS)."""
    tree = psutil.Process(pid).children(recursive=True)
    workers = [child for child in tree if "realtime_service.process.worker" in child.cmdline()]
    return float(sum(child.memory_full_info().pss for child in workers)) / _BYTES
