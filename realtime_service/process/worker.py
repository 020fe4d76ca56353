"""One worker of a supervised service. Started by `supervisor`, never by hand.

    python -m realtime_service.process.worker CORES METRICS LOADS WORKERS INDEX

CORES are numbers with commas, METRICS a socket file, LOADS a file of `cluster.worker_loads`. The settings come from the
environment.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> int:
    cores, metrics, loads, workers, index = arguments
    # Before the imports that start threads, which inherit the affinity.
    os.sched_setaffinity(0, map(int, cores.split(",")))

    from realtime_service.cluster.worker_loads import WorkerLoads
    from realtime_service.process.main import work
    from realtime_service.process.place import Place

    return work(Place(shared=True, metrics=metrics, loads=WorkerLoads(Path(loads), int(workers), int(index))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
