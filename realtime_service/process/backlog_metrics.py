"""Exports the deferred work that waits, its earliest deadline and its age, as metrics: autoscalers follow them."""

import asyncio
import logging
import math

from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import Clock
from shared_model.deferred import DeferredQueue
from shared_model.errors import StoreUnavailable

#: Each replica asks, so not often.
PERIOD_SECONDS = 10.0

log = logging.getLogger(__name__)


async def run(queue: DeferredQueue, metrics: Metrics, clock: Clock) -> None:
    """Until cancelled. Earlier figures stay while the store does not answer."""
    while True:
        try:
            backlog = await queue.backlog()
        except StoreUnavailable as error:
            log.debug("the deferred work that waits could not be read: %s", error)
        else:
            now = clock.wall()
            due = math.inf if backlog.due_in_ms is None else now + backlog.due_in_ms / 1000
            oldest = math.inf if backlog.age_ms is None else now - backlog.age_ms / 1000
            metrics.set_backlog(backlog.waiting, due, oldest)
        await asyncio.sleep(PERIOD_SECONDS)
