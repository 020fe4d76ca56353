"""Notifies callers of the ends of their submitted requests: polls the store for all of them together."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence

from realtime_service.errors import ReplicaUnavailable
from realtime_service.serving.deferral import not_found
from shared_model.deferred import DeferredQueue, Item, State
from shared_model.deferred.owners import request_id_of
from shared_model.errors import StoreUnavailable

PERIOD_SECONDS = 0.1
#: Most requests of one round trip.
CHUNK = 500

log = logging.getLogger(__name__)


class _Watch:
    """The requests of one caller. `pending`: those that have not ended; `ended`: queue of ids that ended or are gone,
    and of None when this replica closes."""

    def __init__(self, request_ids: Sequence[str]) -> None:
        self.pending = set(request_ids)
        self.ended: asyncio.Queue[str | None] = asyncio.Queue()

    def update(self, states: Mapping[str, State | None]) -> None:
        for request_id in self.pending & states.keys():
            state = states[request_id]
            if state is None or state.ended:
                self.pending.remove(request_id)
                self.ended.put_nowait(request_id)


class Watcher:
    """`watch` needs a running `run`, which polls again if the store is not reachable."""

    def __init__(self, deferred_queue: DeferredQueue) -> None:
        self._deferred_queue = deferred_queue
        self._watches: set[_Watch] = set()
        self._watching = asyncio.Event()

    async def watch(self, request_ids: Sequence[str]) -> AsyncGenerator[tuple[str, Item], None]:
        """Yields each request once, when it is published, fails or expires. `request_ids`: those under which they are
        stored (`Deferral.locate`), distinct.

        Raises: NotFound naming an id that was not submitted or is no longer kept; StoreUnavailable, but only in the
        first round trip; ReplicaUnavailable when this replica closes.
        """
        watch = _Watch(request_ids)
        watch.update(await self._states(request_ids))
        self._watches.add(watch)
        self._watching.set()
        try:
            while watch.pending or not watch.ended.empty():
                request_id = await watch.ended.get()
                if request_id is None:
                    raise ReplicaUnavailable("this replica is closing; watch again, another one knows as much")
                if item := await self._fetch(watch, request_id):
                    yield request_id, item
        finally:
            self._watches.discard(watch)

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            if not self._watches:
                self._watching.clear()
                await self._watching.wait()
            try:
                await self.run_once()
            except StoreUnavailable as error:
                log.debug("the states of deferred requests could not be read: %s", error)
            await asyncio.sleep(PERIOD_SECONDS)

    async def run_once(self) -> None:
        """Poll once for all watches. Raises: StoreUnavailable."""
        pending = set[str]().union(*(watch.pending for watch in self._watches))
        states = await self._states(list(pending))
        for watch in self._watches:
            watch.update(states)

    def close(self) -> None:
        """End all watches, because this replica closes; another replica can watch the same requests."""
        for watch in self._watches:
            watch.ended.put_nowait(None)

    async def _states(self, request_ids: Sequence[str]) -> dict[str, State | None]:
        states: dict[str, State | None] = {}
        for start in range(0, len(request_ids), CHUNK):
            chunk = request_ids[start : start + CHUNK]
            states.update(zip(chunk, await self._deferred_queue.states(chunk), strict=True))
        return states

    async def _fetch(self, watch: _Watch, request_id: str) -> Item | None:
        """The ended request; None if the store is not reachable, and the request pending again. Raises: NotFound."""
        try:
            item = await self._deferred_queue.get(request_id)
        except StoreUnavailable:
            watch.pending.add(request_id)
            return None
        if item is None:
            raise not_found(request_id_of(request_id))
        return item
