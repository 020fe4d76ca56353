"""Renews a consumer's leases while it works on what it has claimed."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from types import TracebackType

from shared_model.deferred.store import Claimed, DeferredQueue
from shared_model.errors import StoreUnavailable

#: Seconds between two renewals; `store.LEASE_SECONDS` says why.
RENEW_SECONDS = 5.0

log = logging.getLogger(__name__)


class Lease:
    """Renews leases for as long as its context lasts. `lost`: entries that the consumer no longer holds, or are done.

    `abandon` is called for each lost item. If the store does not answer, the renewal is tried again: a lease counts as
    lost only when another consumer may hold it.
    """

    def __init__(
        self,
        deferred_queue: DeferredQueue,
        consumer: str,
        claimed: Sequence[Claimed],
        abandon: Callable[[Claimed], object] = lambda item: None,
    ) -> None:
        self._deferred_queue = deferred_queue
        self._consumer = consumer
        self._held = list(claimed)
        self._abandon = abandon
        self.lost: set[bytes] = set()

    async def __aenter__(self) -> "Lease":
        # An event ends the task, not a cancellation: the Redis client may swallow one while it awaits a write.
        self._over = asyncio.Event()
        self._renewals = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._over.set()
        await self._renewals

    async def run_once(self) -> None:
        """Renew all held leases. Raises: StoreUnavailable."""
        renewed = await self._deferred_queue.renew(self._consumer, self._held)
        for item in self._held:
            if item.entry not in renewed:
                self.lost.add(item.entry)
                self._abandon(item)
        self._held = [item for item in self._held if item.entry in renewed]

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_SECONDS):
                    await self._over.wait()
            if self._over.is_set():
                return
            try:
                await self.run_once()
            except StoreUnavailable as error:
                log.debug("leases were not renewed: %s", error)
