"""One worker of a supervised service. Started by `supervisor`, never by hand.

    python -m realtime_service.process.worker CORES JOURNAL QUARANTINE RESTARTS

CORES are numbers with commas, JOURNAL and QUARANTINE inherited file descriptors. Its settings are its environment's.
"""

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    cores, journal, quarantine, restarts = arguments
    # Before anything that starts threads is imported: they inherit it.
    os.sched_setaffinity(0, map(int, cores.split(",")))

    from realtime_service.process.main import work
    from realtime_service.workers.journal import Journal
    from realtime_service.workers.place import Guard, Place
    from realtime_service.workers.quarantine import Quarantine

    guard = Guard(Journal(int(journal)).running, Quarantine(int(quarantine)))
    return work(Place(shared=True, restarts=int(restarts), guard=guard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
