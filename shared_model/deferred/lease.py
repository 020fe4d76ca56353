"""Keeps what a consumer has claimed its own, for as long as it works on it."""

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
    """Renews leases for as long as its context lasts. `lost`: what is no longer the consumer's, or is done.

    `abandon` is told of each that is lost. A store that does not answer is asked again: a lease is lost only when
    somebody else may have it.
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
        # Told that it is over, not cancelled: the Redis client, awaiting a write, may swallow a cancellation.
        self._over = asyncio.Event()
        self._renewals = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._over.set()
        await self._renewals

    async def run_once(self) -> None:
        """Renew all that are held. Raises: StoreUnavailable."""
        renewed = await self._deferred_queue.renew(self._consumer, self._held)
        for item in self._held:
            if item.entry not in renewed:
                self.lost.add(item.entry)
                self._abandon(item)
        self._held = [item for item in self._held if item.entry in renewed]

    async def _run(self) -> None:
        while not await self._is_over_within(RENEW_SECONDS):
            try:
                await self.run_once()
            except StoreUnavailable as error:
                log.debug("leases were not renewed: %s", error)

    async def _is_over_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()
        return self._over.is_set()
