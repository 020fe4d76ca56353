"""python -m tests.load.unguarded serve: the service without admission control, which answers late instead."""

import math
import sys

from realtime_service.__main__ import main
from realtime_service.scheduling import scheduler

if __name__ == "__main__":
    scheduler.ADMITTED_SHARE = math.inf
    sys.exit(main(sys.argv[1:]))
