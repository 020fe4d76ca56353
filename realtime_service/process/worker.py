"""One worker of a supervised service. Started by `supervisor`, never by hand.

    python -m realtime_service.process.worker CORES METRICS

CORES are numbers with commas, METRICS a socket file. The settings come from the environment.
"""

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    cores, metrics = arguments
    # Before the imports that start threads, which inherit the affinity.
    os.sched_setaffinity(0, map(int, cores.split(",")))

    from realtime_service.process.main import work
    from realtime_service.process.place import Place

    return work(Place(shared=True, metrics=metrics))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
