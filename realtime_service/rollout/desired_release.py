"""The desired releases: those of the newest known pointers, from Redis or from their copies in files (the twins)."""

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
    """`newest` never returns to an older version of a pointer, even if Redis or the file lost the newer one."""

    def __init__(self, store: Store, snapshot: Callable[[], Snapshot], clock: Clock) -> None:
        self._store = store
        self._snapshot = snapshot
        self._clock = clock
        self._newest: dict[str, Pointer] = {}
        self._look_again = float("-inf")
        self._damage = ""

    @property
    def others(self) -> dict[str, Pointer]:
        """The pointers of other models than the default one, as `newest` has found them."""
        return {name: it for name, it in self._newest.items() if name}

    async def newest(self) -> Pointer | None:
        """The default model's pointer. All are read."""
        snapshot = self._snapshot()
        for found in (snapshot.pointers, await self._twins()):
            for name, it in found.items():
                if name not in self._newest or it.version > self._newest[name].version:
                    self._newest[name] = it
        return self._newest.get("")

    async def _twins(self) -> dict[str, Pointer]:
        if self._clock.monotonic() < self._look_again:
            return {}
        self._look_again = self._clock.monotonic() + TWIN_SECONDS
        found, damage = await asyncio.to_thread(self._read_files)
        if damage and damage != self._damage:
            log.error("%s; this replica keeps the last valid pointer", damage)
        self._damage = damage
        return found

    def _read_files(self) -> tuple[dict[str, Pointer], str]:
        """The pointers of the files, and the damage of the last one that cannot be read."""
        found, damage, models = dict[str, Pointer](), "", list[str]()
        try:
            models = pointer.models(self._store, None)
        except ReleaseError as error:
            damage = str(error)
        for name in ("", *models):
            try:
                if twin := pointer.read_file(self._store, name):
                    found[name] = twin
            except ReleaseError as error:
                damage = str(error)
        return found, damage
