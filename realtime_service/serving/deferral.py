"""Deferred requests: stored in the deferred queue, and acknowledged only once stored."""

import asyncio
import dataclasses
import uuid
from collections.abc import Callable, Sequence

from protos.scoring.v1.storage_pb2 import DeferredWork
from realtime_service.errors import NotFound
from realtime_service.serving.request import ScoringRequest, deferred_request
from shared_model.clock import Clock
from shared_model.deferred import DeferredQueue, Item, State, Submission
from shared_model.errors import QueueFull, StoreUnavailable


class Deferral:
    """`available`: whether the store was reachable at the last heartbeat; a call costs no round trip."""

    def __init__(self, deferred_queue: DeferredQueue, available: Callable[[], bool], clock: Clock) -> None:
        self._deferred_queue = deferred_queue
        self._available = available
        self._clock = clock

    async def accept(self, request: ScoringRequest, deliver_within_ms: int = 0) -> tuple[State, bool]:
        """Store a request once by its id. Returns its state and whether the id had been accepted before.

        `deliver_within_ms`: the request expires without a result by then; 0: never. Raises: StoreUnavailable;
        QueueFull.
        """
        [outcome] = await self.accept_many([(request, deliver_within_ms)])
        if isinstance(outcome, QueueFull):
            raise outcome
        return outcome

    async def accept_many(self, requests: Sequence[tuple[ScoringRequest, int]]) -> list[tuple[State, bool] | QueueFull]:
        """Store several requests in one round trip; returns the outcome of each. Raises: StoreUnavailable."""
        now_ms = round(self._clock.wall() * 1000)
        return await self._deferred_queue.submit_many(
            [
                Submission(
                    request.request_id,
                    DeferredWork(request=deferred_request(request), accepted_at_ms=now_ms),
                    deliver_within_ms,
                )
                for request, deliver_within_ms in requests
            ]
        )

    async def result(self, request_id: str) -> Item:
        """The state and result of a submitted request. Raises: NotFound; StoreUnavailable."""
        item = await self._deferred_queue.get(request_id)
        if item is None:
            raise NotFound(f"request_id: {request_id!r} was not submitted, or its result is no longer kept")
        return item

    async def accept_refused(self, request: ScoringRequest, left: float | None) -> str | None:
        """Store a refused request that may be deferred. Returns its id, or None if the refusal stands.

        `left`: seconds until the caller's deadline. A request stored after it is computed, but its caller has no id.
        """
        if not request.allow_deferred or not self._available():
            return None
        named = dataclasses.replace(request, request_id=request.request_id or uuid.uuid4().hex)
        try:
            async with asyncio.timeout(left):
                await self.accept(named)
        except (StoreUnavailable, QueueFull, TimeoutError):
            return None
        return named.request_id
