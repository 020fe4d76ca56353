"""The health of a router is that of the replicas behind it: a lane is ready while any of them has it."""

import asyncio
import logging

from realtime_service.cluster.membership import Membership
from realtime_service.routing.snapshot import ANY_RELEASE
from realtime_service.settings import SERVED
from realtime_service.transport.health import Readiness

#: Between looks at which lanes there are.
PERIOD_SECONDS = 0.1

log = logging.getLogger(__name__)


class RouterHealth:
    def __init__(self, readiness: Readiness, membership: Membership) -> None:
        self._readiness = readiness
        self._membership = membership

    async def run(self) -> None:
        """Update until cancelled."""
        while True:
            was = self._readiness.ready
            self.update()
            if was and not self._readiness.ready:
                log.warning("the last endpoint is gone: no call can be answered until one is back")
            await asyncio.sleep(PERIOD_SECONDS)

    def update(self) -> None:
        options = self._membership.snapshot.options
        for lane in SERVED:
            self._readiness.set(lane, (ANY_RELEASE, lane) in options)
