"""Idle lanes take deferred requests: the capacity interactive traffic leaves over is free."""

import asyncio
import logging

from realtime_service import replies, requests
from realtime_service.dispatch import Dispatcher
from realtime_service.errors import Overloaded, ReplicaUnavailable, ScoringFailed
from realtime_service.scheduling.device import Device
from realtime_service.telemetry import Telemetry
from shared_model.clock import Clock
from shared_model.errors import BadInput, StoreUnavailable, UnknownRelease
from shared_model.handoff import Claimed, Handoff

#: Seconds between looks at the stream, and requests claimed at once: little is lost when this process dies.
PERIOD_SECONDS = 0.1
CHUNK = 16
#: A claim that is not finished in this time may be taken by another consumer.
LEASE_SECONDS = 60.0

COMPUTED_BY = "idle"

log = logging.getLogger(__name__)


class Harvester:
    """Claims only while the device has nothing better to do."""

    def __init__(
        self,
        handoff: Handoff,
        dispatcher: Dispatcher,
        device: Device,
        telemetry: Telemetry,
        clock: Clock,
        consumer: str,
    ) -> None:
        self._handoff = handoff
        self._dispatcher = dispatcher
        self._device = device
        self._telemetry = telemetry
        self._clock = clock
        self._consumer = consumer

    async def run(self) -> None:
        """Harvest until cancelled."""
        while True:
            harvested = 0
            if self._device.scheduler.idle(self._clock.monotonic()):
                try:
                    harvested = await self.run_once()
                except StoreUnavailable as error:
                    log.debug("no deferred work: %s", error)
            if not harvested:
                await asyncio.sleep(PERIOD_SECONDS)

    async def run_once(self) -> int:
        """Claim and answer one chunk; returns how many requests were claimed. Raises: StoreUnavailable."""
        claimed = await self._handoff.claim(self._consumer, CHUNK, LEASE_SECONDS)
        # Together, so that they share batches.
        await asyncio.gather(*(self._answer(item) for item in claimed))
        return len(claimed)

    async def _answer(self, item: Claimed) -> None:
        try:
            request = requests.check(item.work.request)
            answer = await self._dispatcher.score_deferred(request)
        except (BadInput, UnknownRelease, ScoringFailed) as error:
            await self._handoff.fail(item, str(error), COMPUTED_BY)
        except (Overloaded, ReplicaUnavailable) as error:
            log.info("%s waits for its lease to end: %s", item.request_id, error)
        else:
            await self._handoff.publish(item, replies.score_response(answer, request.request_id), COMPUTED_BY)
            self._telemetry.harvested(1)
