"""The backfill worker: answers deferred requests with the idle capacity of this replica's devices."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from protos.scoring.v1.scoring_pb2 import ScoreResponse
from realtime_service.errors import ModelLoading, Overloaded, ReplicaUnavailable, ScoringFailed
from realtime_service.execution.devices import Devices
from realtime_service.serving.dispatcher import Dispatcher
from realtime_service.serving.request import check_request
from realtime_service.serving.score_response import score_response
from realtime_service.telemetry.calls import NO_TRACER, CallTracer
from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import Clock
from shared_model.deferred import Claimed, DeferredQueue, Lease
from shared_model.errors import BadInput, StoreUnavailable, UnknownRelease
from shared_model.types import ServingPath

#: Seconds between claims, and most requests of a claim: few, because a crash of this process loses them.
PERIOD_SECONDS = 0.1
CHUNK = 16

COMPUTED_BY = "idle"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Failure:
    """The reason why no replica can answer a request."""

    why: str


#: None: this replica could not answer, another one may.
_Outcome = ScoreResponse | _Failure | None


class BackfillWorker:
    """Claims requests only while the device has no other work."""

    def __init__(
        self,
        deferred_queue: DeferredQueue,
        dispatcher: Dispatcher,
        device: Devices,
        metrics: Metrics,
        clock: Clock,
        consumer: str,
        tracer: CallTracer = NO_TRACER,
    ) -> None:
        self._deferred_queue = deferred_queue
        self._dispatcher = dispatcher
        self._device = device
        self._metrics = metrics
        self._clock = clock
        self._consumer = consumer
        self._tracer = tracer

    async def run(self) -> None:
        """Claim and answer until cancelled."""
        while True:
            ended = 0
            if self._device.idle(ServingPath.DEFERRED, self._clock.monotonic()):
                try:
                    ended = await self.run_once()
                except StoreUnavailable as error:
                    log.debug("no deferred request could be claimed: %s", error)
            if not ended:
                await asyncio.sleep(PERIOD_SECONDS)

    async def run_once(self) -> int:
        """Claim and answer one chunk; returns how many of it have ended. Raises: StoreUnavailable."""
        # The store may have claimed some though a stop comes before its reply: they are returned as well.
        claiming = asyncio.create_task(
            self._deferred_queue.claim(self._consumer, CHUNK, models=self._dispatcher.served_models)
        )
        try:
            claimed = await asyncio.shield(claiming)
            return await self._end(claimed) if claimed else 0
        except asyncio.CancelledError:
            returning = asyncio.create_task(self._give_back(claiming))
            # A stop cancels again every tenth of a second.
            while not returning.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([returning])
            returning.result()
            raise

    async def _end(self, claimed: Sequence[Claimed]) -> int:
        # Concurrently, so that they share batches.
        answers = {item.entry: asyncio.create_task(self._answer(item)) for item in claimed}
        try:
            async with Lease(self._deferred_queue, self._consumer, claimed, lambda item: answers[item.entry].cancel()):
                await asyncio.wait(answers.values())
                return await self._settle([(item, answers[item.entry]) for item in claimed])
        finally:
            for answer in answers.values():
                answer.cancel()

    async def _give_back(self, claiming: "asyncio.Task[list[Claimed]]") -> None:
        """A stop is not a crash: returned requests do not count as delivered."""
        with contextlib.suppress(StoreUnavailable):
            if claimed := await claiming:
                await self._deferred_queue.nack(self._consumer, claimed)

    async def _answer(self, item: Claimed) -> _Outcome:
        try:
            with self._tracer.resumed(item.work.traceparent):
                request = check_request(item.work.request)
                answer = await self._dispatcher.score_deferred(request)
        except (BadInput, UnknownRelease, ScoringFailed) as error:
            return _Failure(str(error))
        except (Overloaded, ReplicaUnavailable, ModelLoading) as error:
            log.info("%r goes back: %s", item.request_id, error)
            return None
        return ScoreResponse.FromString(score_response(answer, request.request_id))

    async def _settle(self, answers: Sequence[tuple[Claimed, "asyncio.Task[_Outcome]"]]) -> int:
        """Store the answers and return the other requests to the queue; returns how many have ended.

        A cancelled request has no outcome, because another consumer has claimed it. During an outage of the store this
        retries until it is reachable: otherwise the requests would be computed again, and count as crashed once.
        """
        outcomes = [(item, answer.result()) for item, answer in answers if not answer.cancelled()]
        while True:
            try:
                return await self._store(outcomes)
            except StoreUnavailable as error:
                log.debug("%d answers wait for the store: %s", len(outcomes), error)
                await asyncio.sleep(PERIOD_SECONDS)

    async def _store(self, outcomes: Sequence[tuple[Claimed, _Outcome]]) -> int:
        """Idempotent: only the first end of a request counts."""
        scored = [(item, outcome) for item, outcome in outcomes if isinstance(outcome, ScoreResponse)]
        failed = [(item, outcome.why) for item, outcome in outcomes if isinstance(outcome, _Failure)]
        if scored:
            await self._deferred_queue.store_results(scored, COMPUTED_BY)
            self._metrics.backfilled(await self._deferred_queue.acknowledge([item for item, _ in scored]))
        for item, why in failed:
            await self._deferred_queue.fail(item, why, COMPUTED_BY)
        if returned := [item for item, outcome in outcomes if outcome is None]:
            await self._deferred_queue.nack(self._consumer, returned)
        return len(scored) + len(failed)
