"""One worker of a supervised service. Started by `supervisor`, never by hand.

    python -m realtime_service.process.worker CORES RESTARTS

CORES are numbers with commas. The settings come from the environment.
"""

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    cores, restarts = arguments
    # Before the imports that start threads, which inherit the affinity.
    os.sched_setaffinity(0, map(int, cores.split(",")))

    from realtime_service.process.main import work
    from realtime_service.process.place import Place

    return work(Place(shared=True, restarts=int(restarts)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
