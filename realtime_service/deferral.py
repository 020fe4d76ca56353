"""Requests that may wait: taken as deferred work, acknowledged only when stored."""

import asyncio
import dataclasses
import uuid
from collections.abc import Callable
from typing import TypeAlias

from protos.scoring.v1.storage_pb2 import DeferredWork
from realtime_service import requests
from realtime_service.errors import NotFound
from realtime_service.requests import ScoringRequest
from shared_model.clock import Clock
from shared_model.errors import QueueFull, StoreUnavailable
from shared_model.handoff import Handoff, Item, State, Submission

#: Requests, and bytes of them, that go to the store in one round trip. A larger one goes alone.
CHUNK = 256
CHUNK_BYTES = 1024 * 1024

#: Resolved with the state and whether the id had been accepted before.
_Stored: TypeAlias = "asyncio.Future[tuple[State, bool]]"


class Deferral:
    """`available`: whether the store answered when it was last heard of; costs nothing to ask.

    One call at a time stores what has come since the one before, whoever sent it: under load a round trip, and a wait
    for replicas, is shared by hundreds; a lonely request does not wait for company.
    """

    def __init__(self, handoff: Handoff, available: Callable[[], bool], clock: Clock) -> None:
        self._handoff = handoff
        self._available = available
        self._clock = clock
        self._waiting: list[tuple[Submission, _Stored]] = []
        self._storing: asyncio.Task[None] | None = None

    async def accept(self, request: ScoringRequest, deliver_within_ms: int = 0) -> tuple[State, bool]:
        """Store a request once by its id. Returns its state and whether the id had been accepted before.

        Raises: StoreUnavailable; QueueFull.
        """
        message = requests.deferred_request(request)
        work = DeferredWork(request=message, accepted_at_ms=round(self._clock.wall() * 1000))
        stored: _Stored = asyncio.get_running_loop().create_future()
        self._waiting.append((Submission(request.request_id, work, deliver_within_ms), stored))
        if self._storing is None:
            self._storing = asyncio.create_task(self._store())
        return await stored

    async def result(self, request_id: str) -> Item:
        """What became of a submitted request. Raises: NotFound; StoreUnavailable."""
        item = await self._handoff.get(request_id)
        if item is None:
            raise NotFound(f"request_id: {request_id!r} was not submitted, or its result is no longer kept")
        return item

    async def accept_refused(self, request: ScoringRequest, left: float | None) -> str | None:
        """The id by which a request that was refused will be answered later; None when its refusal stands.

        `left`: seconds the caller still waits. A request stored after that is answered, but nobody was told.
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

    async def _store(self) -> None:
        """Until nothing waits."""
        try:
            while chunk := self._next_chunk():
                await self._store_chunk(chunk)
        finally:
            self._storing = None

    def _next_chunk(self) -> list[tuple[Submission, _Stored]]:
        """What has come and whose sender is still there, as much as one round trip takes."""
        waiting = [it for it in self._waiting if not it[1].done()]
        size = count = 0
        while count < min(CHUNK, len(waiting)) and (size := size + waiting[count][0].work.ByteSize()) <= CHUNK_BYTES:
            count += 1
        count = max(count, 1)
        self._waiting = waiting[count:]
        return waiting[:count]

    async def _store_chunk(self, chunk: list[tuple[Submission, _Stored]]) -> None:
        outcomes: list[tuple[State, bool] | QueueFull | StoreUnavailable]
        try:
            outcomes = [*await self._handoff.submit_many([submission for submission, _ in chunk])]
        except StoreUnavailable as error:
            outcomes = [error] * len(chunk)
        for (_, stored), outcome in zip(chunk, outcomes, strict=True):
            if stored.done():
                continue
            if isinstance(outcome, tuple):
                stored.set_result(outcome)
            else:
                stored.set_exception(outcome)
