"""The desired release: that of the newest known pointer, from Redis or from its copy in a file (the twin)."""

import asyncio
import logging
from collections.abc import Callable

from realtime_service.routing.snapshot import Snapshot
from shared_model.clock import Clock
from shared_model.errors import ReleaseError
from shared_model.releases import pointer
from shared_model.releases.pointer import Pointer
from shared_model.releases.store import Store

#: Seconds between reads of the file, which may be on a network. It is also read while Redis is reachable: a promotion
#: made during a Redis outage is only in the file.
TWIN_SECONDS = 1.0

log = logging.getLogger(__name__)


class DesiredReleases:
    """`newest` never returns to an older version of the pointer, even if Redis or the file lost the newer one."""

    def __init__(self, store: Store, snapshot: Callable[[], Snapshot], clock: Clock) -> None:
        self._store = store
        self._snapshot = snapshot
        self._clock = clock
        self._newest: Pointer | None = None
        self._look_again = float("-inf")
        self._damage = ""

    async def newest(self) -> Pointer | None:
        found = [self._newest, self._snapshot().pointer, await self._twin()]
        self._newest = max((p for p in found if p), key=lambda p: p.version, default=None)
        return self._newest

    async def _twin(self) -> Pointer | None:
        if self._clock.monotonic() < self._look_again:
            return None
        self._look_again = self._clock.monotonic() + TWIN_SECONDS
        try:
            twin = await asyncio.to_thread(pointer.read_file, self._store)
        except ReleaseError as error:
            if str(error) != self._damage:
                log.error("%s; this replica keeps the last valid pointer", error)
            self._damage = str(error)
            return None
        self._damage = ""
        return twin
