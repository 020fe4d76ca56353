"""Tells callers when what they submitted has ended: one look at the store for all of them, a few times a second."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence

from realtime_service.errors import NotFound, ReplicaUnavailable
from shared_model.deferred import DeferredQueue, Item, State
from shared_model.errors import StoreUnavailable

PERIOD_SECONDS = 0.1
#: Requests asked for in one round trip.
CHUNK = 500

log = logging.getLogger(__name__)


class _Watch:
    """What one caller waits for. `news`: ids that ended or are gone; None when there will be no more."""

    def __init__(self, request_ids: Sequence[str]) -> None:
        self.waiting = set(request_ids)
        self.news: asyncio.Queue[str | None] = asyncio.Queue()

    def tell(self, states: Mapping[str, State | None]) -> None:
        for request_id in self.waiting & states.keys():
            state = states[request_id]
            if state is None or state.ended:
                self.waiting.remove(request_id)
                self.news.put_nowait(request_id)


class Watcher:
    """`run` must be running for `watch` to end. A store that does not answer is asked again until it does."""

    def __init__(self, deferred_queue: DeferredQueue) -> None:
        self._deferred_queue = deferred_queue
        self._watches: set[_Watch] = set()
        self._watching = asyncio.Event()

    async def watch(self, request_ids: Sequence[str]) -> AsyncGenerator[tuple[str, Item], None]:
        """Each request as it is published, fails or expires, once; over when all have ended. `request_ids` differ.

        Raises: NotFound naming an id that was not submitted or is no longer kept; StoreUnavailable, but only at the
        first look; ReplicaUnavailable when this replica closes.
        """
        watch = _Watch(request_ids)
        watch.tell(await self._look(request_ids))
        self._watches.add(watch)
        self._watching.set()
        try:
            while watch.waiting or not watch.news.empty():
                request_id = await watch.news.get()
                if request_id is None:
                    raise ReplicaUnavailable("this replica is closing; watch again, another one knows as much")
                if item := await self._fetch(watch, request_id):
                    yield request_id, item
        finally:
            self._watches.discard(watch)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            if not self._watches:
                self._watching.clear()
                await self._watching.wait()
            try:
                await self.run_once()
            except StoreUnavailable as error:
                log.debug("no news of deferred work: %s", error)
            await asyncio.sleep(PERIOD_SECONDS)

    async def run_once(self) -> None:
        """One look for all watches. Raises: StoreUnavailable."""
        wanted = list(set[str]().union(*(watch.waiting for watch in self._watches)))
        states = await self._look(wanted)
        for watch in self._watches:
            watch.tell(states)

    def close(self) -> None:
        """End all watches: this replica goes, and what they wait for does not depend on it."""
        for watch in self._watches:
            watch.news.put_nowait(None)

    async def _look(self, request_ids: Sequence[str]) -> dict[str, State | None]:
        states: dict[str, State | None] = {}
        for start in range(0, len(request_ids), CHUNK):
            chunk = request_ids[start : start + CHUNK]
            states.update(zip(chunk, await self._deferred_queue.states(chunk), strict=True))
        return states

    async def _fetch(self, watch: _Watch, request_id: str) -> Item | None:
        """Its end; None when the store has just gone, and will be asked again. Raises: NotFound."""
        try:
            item = await self._deferred_queue.get(request_id)
        except StoreUnavailable:
            watch.waiting.add(request_id)
            return None
        if item is None:
            raise NotFound(f"request_id: {request_id!r} was not submitted, or its result is no longer kept")
        return item
