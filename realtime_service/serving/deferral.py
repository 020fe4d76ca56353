"""Deferred requests: stored in the deferred queue, acknowledged only once stored, and read by those who may."""

import asyncio
import dataclasses
import hmac
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto

from protos.scoring.v1.storage_pb2 import DeferredWork
from realtime_service.errors import NotFound
from realtime_service.identity import Identity
from realtime_service.serving.request import ScoringRequest, deferred_request
from realtime_service.settings import ServiceSettings
from shared_model import tracing
from shared_model.clock import Clock
from shared_model.deferred import Accepted, DeferredQueue, Item, Outcome, Submission
from shared_model.deferred.owners import is_owned, owned
from shared_model.errors import AlreadyExists, BadInput, QueueFull, StoreUnavailable

#: Random bytes of a ticket.
_TICKET_BYTES = 16


class Readers(Enum):
    """The readers of a deferred request's result. EVERYONE: on a loopback address, by its id. TICKET_HOLDERS: where
    other hosts can call, with the ticket that its submitter got. OWNER: where tokens are required, its submitter.

    Requests that earlier versions have stored have neither ticket nor owner: their ids are enough.
    """

    EVERYONE = auto()
    TICKET_HOLDERS = auto()
    OWNER = auto()

    @staticmethod
    def of(settings: ServiceSettings) -> "Readers":
        if settings.token_required:
            return Readers.OWNER
        return Readers.EVERYONE if settings.local else Readers.TICKET_HOLDERS


class Deferral:
    """`available`: whether the store was reachable at the last heartbeat; a call costs no round trip."""

    def __init__(
        self, deferred_queue: DeferredQueue, available: Callable[[], bool], readers: Readers, clock: Clock
    ) -> None:
        self._deferred_queue = deferred_queue
        self._available = available
        self._readers = readers
        self._clock = clock

    async def accept(self, caller: Identity, request: ScoringRequest, deliver_within_ms: int = 0) -> Accepted:
        """Store a request once by its id.

        `deliver_within_ms`: the request expires without a result by then; 0: never. Raises: BadInput;
        StoreUnavailable; QueueFull; AlreadyExists.
        """
        self.check_id(request.request_id)
        [outcome] = await self.accept_many(caller, [(request, deliver_within_ms)])
        if not isinstance(outcome, Accepted):
            raise outcome
        return outcome

    async def accept_many(self, caller: Identity, requests: Sequence[tuple[ScoringRequest, int]]) -> list[Outcome]:
        """Store several requests, whose ids have been checked, in one round trip; returns the outcome of each.

        Raises: StoreUnavailable.
        """
        now_ms = round(self._clock.wall() * 1000)
        return await self._deferred_queue.submit_many(
            [self._submission(caller, request, now_ms, deliver_within_ms) for request, deliver_within_ms in requests]
        )

    def check_id(self, request_id: str) -> None:
        """Raises: BadInput for the id of another caller's request."""
        if self._readers is not Readers.OWNER and is_owned(request_id):
            raise BadInput("request_id", "begins like that of a verified caller, token:NAME/; choose another id")

    async def result(self, caller: Identity, request_id: str, ticket: str) -> Item:
        """The state and result of a submitted request. Raises: NotFound; StoreUnavailable."""
        for stored_id in self._stored_ids(caller, request_id):
            item = await self._deferred_queue.get(stored_id)
            if item and self._may_read(stored_id, item.ticket, ticket):
                return item
        raise not_found(request_id)

    async def locate(self, caller: Identity, asked: Mapping[str, str]) -> list[str]:
        """The ids under which requests are stored. `asked`: the caller's ids, and their tickets.

        Raises: NotFound naming the first that the caller may not read; StoreUnavailable.
        """
        places = {request_id: self._stored_ids(caller, request_id) for request_id in asked}
        if self._readers is Readers.EVERYONE and all(places.values()):
            return list(asked)
        stored_ids = [stored_id for several in places.values() for stored_id in several]
        tickets = dict(zip(stored_ids, await self._deferred_queue.tickets(stored_ids), strict=True))
        found = []
        for request_id, several in places.items():
            readable = (it for it in several if self._may_read(it, tickets[it], asked[request_id]))
            if (stored_id := next(readable, None)) is None:
                raise not_found(request_id)
            found.append(stored_id)
        return found

    async def accept_refused(self, caller: Identity, request: ScoringRequest, left: float | None) -> "Ticket | None":
        """Store a refused request that may be deferred. Returns its ticket, or None if the refusal stands.

        `left`: seconds until the caller's deadline. A request stored after it is computed, but its caller has no id.
        """
        if not request.allow_deferred or not self._available():
            return None
        named = dataclasses.replace(request, request_id=request.request_id or uuid.uuid4().hex)
        try:
            async with asyncio.timeout(left):
                accepted = await self.accept(caller, named)
        except (StoreUnavailable, QueueFull, AlreadyExists, BadInput, TimeoutError):
            return None
        return Ticket(named.request_id, accepted.ticket)

    def _submission(self, caller: Identity, request: ScoringRequest, now_ms: int, deliver_within_ms: int) -> Submission:
        stored, traceparent = deferred_request(request), tracing.traceparent()
        work = DeferredWork(request=stored, accepted_at_ms=now_ms, traceparent=traceparent)
        if self._readers is Readers.OWNER:
            return Submission(owned(caller.key, request.request_id), work, deliver_within_ms)
        # Also on a loopback address: another replica may answer other hosts.
        return Submission(request.request_id, work, deliver_within_ms, secrets.token_urlsafe(_TICKET_BYTES))

    def _stored_ids(self, caller: Identity, request_id: str) -> list[str]:
        """The places of a caller's request, the likelier one first."""
        unowned = [] if is_owned(request_id) else [request_id]
        return [owned(caller.key, request_id), *unowned] if self._readers is Readers.OWNER else unowned

    def _may_read(self, stored_id: str, ticket: str | None, shown: str) -> bool:
        """`ticket`: that of the stored request, None if there is no such request."""
        if ticket is None:
            return False
        if not ticket or self._readers is Readers.EVERYONE or is_owned(stored_id):
            return True
        return hmac.compare_digest(ticket.encode(), shown.encode())


@dataclasses.dataclass(frozen=True, slots=True)
class Ticket:
    """The id that a deferred answer is asked for by. `secret`: needed besides; empty where the id is enough."""

    request_id: str
    secret: str


def not_found(request_id: str) -> NotFound:
    return NotFound(f"request_id: {request_id!r} was not submitted, or its result is no longer kept")
