"""How long a service starts until all lanes are open, for the first time and again on one host, and the memory of two
workers beside that of one."""

import tempfile
import time
from pathlib import Path

import psutil

from tests.benchmarks import replicas
from tests.benchmarks.online.memory import proportional
from tests.benchmarks.online.stage import SETTINGS, Stage


def start(stage: Stage) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder:
        state = Path(folder)
        stage.measured("first start on this host, s", _started(stage, state, workers=1)[0])
        seconds, one = _started(stage, state, workers=1)
        stage.measured("one worker, MB", one)
        two = stage.measured("two workers, MB", _started(stage, state, workers=2)[1])
    return {"start_all_lanes_s": seconds, "two_workers_of_one": two / one}


def _started(stage: Stage, state: Path, workers: int) -> tuple[float, float]:
    """Seconds until all lanes are open, and the megabytes of the workers."""
    began = time.monotonic()
    with replicas.replica_in(state, stage.place, **SETTINGS, TANDEM_WORKERS=str(workers)) as running:
        return time.monotonic() - began, _workers_megabytes(running.process.pid)


def _workers_megabytes(pid: int) -> float:
    """Of a supervised service."""
    tree = psutil.Process(pid).children(recursive=True)
    return proportional(child for child in tree if "realtime_service.process.worker" in child.cmdline())
