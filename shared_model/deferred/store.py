"""The deferred stream and its results, in Redis."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import redis.asyncio

from protos.scoring.v1.scoring_pb2 import ScoreResponse
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model.deferred.owners import request_id_of
from shared_model.deferred.scripts import Scripts, UnansweredCallback, answered, ignore_unanswered
from shared_model.errors import AlreadyExists, QueueFull
from shared_model.redis_store import keys
from shared_model.settings import DeferredSettings
from shared_model.types import DeferredState

State = DeferredState

#: Another consumer may take a claim that is neither finished nor renewed within this time. Three renewals fit in: two
#: may be lost, or late on a busy machine, before anything is computed twice.
LEASE_SECONDS = 15.0
#: The delivery that goes to the dead letters instead: two consumers have died with the work by then.
LAST_DELIVERY = 3
_GIVEN_UP = f"given up: {LAST_DELIVERY - 1} consumers took it and died or lost it; it is kept as a dead letter"

#: Entries that one script checks for expired leases: it blocks Redis for less than a millisecond.
_LOOKED_AT = 500

DEFAULTS = DeferredSettings()

#: Code of `submit.lua`.
_FULL = -1


@dataclass(frozen=True)
class Submission:
    """Work to be accepted. `deliver_within_ms`: it expires if it has no result by then; 0: no deadline. `ticket`: to be
    shown by its readers, if any."""

    request_id: str
    work: DeferredWork
    deliver_within_ms: int = 0
    ticket: str = ""

    @property
    def content(self) -> str:
        """Hash of the request: equal for a request that is submitted again."""
        request = self.work.request.SerializeToString(deterministic=True)
        return hashlib.blake2b(request, digest_size=16).hexdigest()


class Accepted(NamedTuple):
    """`duplicate`: whether the same request had been accepted before; `ticket`: the one of then."""

    state: State
    duplicate: bool
    ticket: str


#: Of one submission.
Outcome = Accepted | QueueFull | AlreadyExists


@dataclass(frozen=True)
class Item:
    """A submitted request. `response` is set once it is published, `failure` once it failed; `ticket`: to be shown by
    its readers, if any."""

    state: State
    response: ScoreResponse | None = None
    computed_by: str = ""
    failure: str = ""
    ticket: str = ""


@dataclass(frozen=True)
class Claimed:
    """Work that this consumer holds until its lease ends. `counted`: whether the claim counts as a delivery."""

    entry: bytes
    request_id: str
    work: DeferredWork
    counted: bool = True


class Backlog(NamedTuple):
    """Requests that wait and that no consumer is at; milliseconds until the earliest deadline of those that are free to
    claim, None where none has one; and since the oldest that is not answered was accepted, None without any."""

    waiting: int
    due_in_ms: int | None
    age_ms: int | None = None


class DeferredQueue:
    """Every call raises StoreUnavailable if Redis does not answer. Only stored work is acknowledged."""

    def __init__(
        self,
        client: "redis.asyncio.Redis",
        settings: DeferredSettings = DEFAULTS,
        on_unanswered: UnansweredCallback = ignore_unanswered,
    ) -> None:
        self._redis = client
        self._settings = settings
        self._scripts = Scripts(client, settings, on_unanswered)
        self._looked_until: bytes | str = ""

    async def submit(self, request_id: str, work: DeferredWork, deliver_within_ms: int = 0) -> tuple[State, bool]:
        """Store work once. Returns its state and whether it had been accepted before.

        Raises: QueueFull; AlreadyExists.
        """
        [outcome] = await self.submit_many([Submission(request_id, work, deliver_within_ms)])
        if not isinstance(outcome, Accepted):
            raise outcome
        return outcome.state, outcome.duplicate

    async def submit_many(self, submissions: Sequence[Submission]) -> list[Outcome]:
        """Store several, each by itself, in one round trip. Returns their outcomes in order."""
        arguments: list[object] = [self._settings.deferred_bound, self._settings.deferred_wait_seconds]
        for it in submissions:
            arguments += [it.request_id, it.work.SerializeToString(), it.deliver_within_ms, it.content, it.ticket]
            arguments.append(it.work.request.model)
        items = [keys.deferred_item(it.request_id) for it in submissions]
        answers = await self._scripts.run_replicated("submit", items, arguments)
        return [self._outcome(it, *answer) for it, answer in zip(submissions, answers, strict=True)]

    def _outcome(self, submission: Submission, code: int, state: bytes, ticket: bytes) -> Outcome:
        if code >= 0:
            return Accepted(State(state.decode()), code == 0, ticket.decode())
        if code == _FULL:
            return QueueFull(f"{self._settings.deferred_bound} deferred requests are waiting; submit again later")
        named = request_id_of(submission.request_id)
        return AlreadyExists(f"request_id: {named!r} was submitted before, with other content; choose another id")

    async def get(self, request_id: str) -> Item | None:
        """None if no such request was accepted, or it is no longer kept."""
        flat = await self._scripts.run("read", [keys.deferred_item(request_id)], [])
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        if not fields:
            return None
        state = State(fields[b"state"].decode())
        return Item(
            state=state,
            response=ScoreResponse.FromString(fields[b"result"]) if state is State.PUBLISHED else None,
            computed_by=fields.get(b"computed_by", b"").decode(),
            failure=fields.get(b"failure", b"").decode(),
            ticket=fields.get(b"ticket", b"").decode(),
        )

    async def tickets(self, request_ids: Sequence[str]) -> list[str | None]:
        """The ticket of each, "" for one without, in one round trip; None where `get` returns None."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for request_id in request_ids:
                pipe.hmget(keys.deferred_item(request_id), ["state", "ticket"])
            found = await answered(pipe.execute())
        return [None if state is None else (ticket or b"").decode() for state, ticket in found]

    async def states(self, request_ids: Sequence[str]) -> list[State | None]:
        """The state of each, in one round trip; None where `get` returns None."""
        items = [keys.deferred_item(request_id) for request_id in request_ids]
        return [State(state.decode()) if state else None for state in await self._scripts.run("look", items, [])]

    async def claim(
        self,
        consumer: str,
        count: int,
        lease_seconds: float = LEASE_SECONDS,
        again: int = 1,
        counted: bool = True,
        models: Collection[str] | None = None,
    ) -> list[Claimed]:
        """Up to `count` requests: first those whose lease expired, then free ones by deadline, then age.

        At most `again` of them were delivered before, and those come without new ones: work that killed one consumer
        must not take a whole chunk down with the next. `counted`: whether this claim counts as a delivery. If it does
        not, a death of the consumer is not held against its work. `models`: those of which it takes work beside the
        default one; None: of all.
        """
        looks = 2 if self._looked_until else 1
        found: list[Claimed] = []
        # Scan from where the last call stopped to the end, then the whole stream.
        while not found and looks:
            found = await self._claim(consumer, count, lease_seconds, again, counted, models)
            looks -= not self._looked_until
        return found

    async def _claim(
        self,
        consumer: str,
        count: int,
        lease_seconds: float,
        again: int,
        counted: bool,
        models: Collection[str] | None,
    ) -> list[Claimed]:
        """One step of a scan of the stream; the scan is complete when `_looked_until` is empty."""
        self._looked_until, found, dead = await self._scripts.run(
            "claim",
            [keys.dead_letters()],
            [
                *(consumer, count, again, int(lease_seconds * 1000)),
                *(self._looked_until, _LOOKED_AT, keys.deferred_item("")),
                *(LAST_DELIVERY, _GIVEN_UP, int(counted)),
                "" if models is None else f",{','.join(models)},",
            ],
        )
        self._scripts.report_dead_letters(dead)
        return [Claimed(entry, name.decode(), DeferredWork.FromString(work), counted) for entry, name, work in found]

    async def renew(self, consumer: str, claimed: Sequence[Claimed]) -> set[bytes]:
        """Renew these leases. Returns the entries that the consumer still holds; the others are lost, or done."""
        return set(await self._scripts.run("renew", [], [consumer, *(item.entry for item in claimed)]))

    async def nack(self, consumer: str, claimed: Sequence[Claimed]) -> int:
        """Return work that was not done, as if it had not been delivered. Returns how many the consumer held."""
        items = [keys.deferred_item(item.request_id) for item in claimed]
        longest = self._settings.deferred_wait_seconds * 1000
        entries = [part for item in claimed for part in (item.entry, int(item.counted))]
        return int(await self._scripts.run("nack", items, [consumer, longest, *entries]))

    async def store_results(self, answers: Sequence[tuple[Claimed, ScoreResponse]], computed_by: str) -> list[bool]:
        """Store results by request id, to be acknowledged next. False for each that came after another end."""
        items = [keys.deferred_item(item.request_id) for item, _ in answers]
        results = [part for item, response in answers for part in (item.entry, response.SerializeToString())]
        return [bool(kept) for kept in await self._scripts.run("store_results", items, [computed_by, *results])]

    async def acknowledge(self, claimed: Sequence[Claimed]) -> int:
        """Acknowledge work whose result, or other end, is stored. Returns how many this call published."""
        items = [keys.deferred_item(item.request_id) for item in claimed]
        return sum(await self._scripts.run("acknowledge", items, [item.entry for item in claimed]))

    async def fail(self, item: Claimed, failure: str, computed_by: str) -> bool:
        """End the work with a failure of its own. False if it already has a result or another end."""
        arguments = [computed_by, item.entry, failure]
        return bool(await self._scripts.run("fail", [keys.deferred_item(item.request_id)], arguments))

    async def dead_letter(self, item: Claimed, failure: str, computed_by: str, attempts: int) -> bool:
        """As `fail`, and keep the work as a dead letter. `attempts`: how often it was tried by itself."""
        arguments = [computed_by, item.entry, failure, item.request_id, item.work.SerializeToString(), attempts]
        both = [keys.deferred_item(item.request_id), keys.dead_letters()]
        dead_lettered = bool(await self._scripts.run("fail", both, arguments))
        self._scripts.report_dead_letters(dead_lettered)
        return dead_lettered

    async def waiting(self) -> int:
        """The number of requests accepted and not finished."""
        return int(await answered(self._redis.xlen(keys.deferred_stream())))

    async def backlog(self, lease_seconds: float = LEASE_SECONDS) -> Backlog:
        """The work that idle lanes have left and do not work on now."""
        waiting, due, oldest, now = await self._scripts.run("backlog", [], [int(lease_seconds * 1000)])
        return Backlog(waiting, int(float(due)) - now if due else None, now - int(oldest) if oldest else None)
