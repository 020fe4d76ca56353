"""The deferred stream and its results, in Redis."""

from collections.abc import Sequence
from dataclasses import dataclass

import redis.asyncio

from protos.scoring.v1.scoring_pb2 import ScoreResponse
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model.deferred.scripts import Scripts, UnansweredCallback, ignore_unanswered
from shared_model.errors import QueueFull, StoreUnavailable
from shared_model.redis_store import keys
from shared_model.settings import DeferredSettings
from shared_model.types import DeferredState

State = DeferredState

#: A claim that is neither finished nor renewed in this time may be taken by another consumer. Three renewals fit in:
#: two may be lost, or late on a busy machine, before anything is computed twice.
LEASE_SECONDS = 15.0
#: The delivery that goes to the dead letters: two consumers died of the work, or with it, and that is enough.
LAST_DELIVERY = 3
_GIVEN_UP = f"given up: {LAST_DELIVERY - 1} consumers took it and died or lost it; it is kept as a dead letter"

#: Entries that one script looks at for lost leases: it holds up Redis for less than a millisecond.
_LOOKED_AT = 500

DEFAULTS = DeferredSettings()


@dataclass(frozen=True)
class Submission:
    """Work to be accepted. `deliver_within_ms`: without a result by then it expires; 0 means at any time."""

    request_id: str
    work: DeferredWork
    deliver_within_ms: int = 0


@dataclass(frozen=True)
class Item:
    """What is known of a submitted request. `response` once published, `failure` once failed."""

    state: State
    response: ScoreResponse | None = None
    computed_by: str = ""
    failure: str = ""


@dataclass(frozen=True)
class Claimed:
    """Work this consumer holds until its lease ends. Finish it by entry id. `counted`: whether this is a delivery."""

    entry: bytes
    request_id: str
    work: DeferredWork
    counted: bool = True


class DeferredQueue:
    """Every call raises StoreUnavailable when Redis does not answer; nothing is acknowledged that is not stored."""

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
        """Store work once. Returns its state and whether this id had been accepted before. Raises: QueueFull."""
        [outcome] = await self.submit_many([Submission(request_id, work, deliver_within_ms)])
        if isinstance(outcome, QueueFull):
            raise outcome
        return outcome

    async def submit_many(self, submissions: Sequence[Submission]) -> list[tuple[State, bool] | QueueFull]:
        """The same for several, in one round trip, each by itself: what became of each, in their order."""
        arguments: list[object] = [self._settings.deferred_bound, self._settings.deferred_wait_seconds]
        for it in submissions:
            arguments += [it.request_id, it.work.SerializeToString(), it.deliver_within_ms]
        items = [keys.deferred_item(it.request_id) for it in submissions]
        answers = await self._scripts.run_replicated("submit", items, arguments)
        return [self._outcome(code, state) for code, state in answers]

    async def get(self, request_id: str) -> Item | None:
        """None if no such request was accepted, or its time to be kept is over."""
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
        )

    async def states(self, request_ids: Sequence[str]) -> list[State | None]:
        """How far each is, in one round trip; None where `get` would say None."""
        items = [keys.deferred_item(request_id) for request_id in request_ids]
        return [State(state.decode()) if state else None for state in await self._scripts.run("look", items, [])]

    async def claim(
        self, consumer: str, count: int, lease_seconds: float = LEASE_SECONDS, again: int = 1, counted: bool = True
    ) -> list[Claimed]:
        """Up to `count` requests: first those whose lease ran out, then new ones.

        Of those that were delivered before at most `again`, and apart from what is new: what killed one consumer must
        not take down a whole chunk with the next. `counted`: whether this is a delivery; where it is none, what the
        consumer dies of is not taken for the fault of what it held.
        """
        looks = 2 if self._looked_until else 1
        found: list[Claimed] = []
        # From where the last call stopped to the end, and then all of it.
        while not found and looks:
            found = await self._claim(consumer, count, lease_seconds, again, counted)
            looks -= not self._looked_until
        return found

    async def _claim(self, consumer: str, count: int, lease_seconds: float, again: int, counted: bool) -> list[Claimed]:
        """One step of a look through the stream, which ends where `_looked_until` is empty."""
        self._looked_until, found, dead = await self._scripts.run(
            "claim",
            [keys.dead_letters()],
            [
                *(consumer, count, again, int(lease_seconds * 1000)),
                *(self._looked_until, _LOOKED_AT, keys.deferred_item("")),
                *(LAST_DELIVERY, _GIVEN_UP, int(counted)),
            ],
        )
        self._scripts.report_dead_letters(dead)
        return [Claimed(entry, name.decode(), DeferredWork.FromString(work), counted) for entry, name, work in found]

    async def renew(self, consumer: str, claimed: Sequence[Claimed]) -> set[bytes]:
        """Start these leases anew. Returns the entries the consumer still holds: the others are lost to it, or done."""
        return set(await self._scripts.run("renew", [], [consumer, *(item.entry for item in claimed)]))

    async def nack(self, consumer: str, claimed: Sequence[Claimed]) -> int:
        """Return work that was not done, as if it had not been delivered. Returns how many were the consumer's."""
        items = [keys.deferred_item(item.request_id) for item in claimed]
        longest = self._settings.deferred_wait_seconds * 1000
        entries = [part for item in claimed for part in (item.entry, int(item.counted))]
        return int(await self._scripts.run("nack", items, [consumer, longest, *entries]))

    async def store_results(self, answers: Sequence[tuple[Claimed, ScoreResponse]], computed_by: str) -> list[bool]:
        """Store answers by key; publish them next. For each False when an earlier one stands, or it came too late."""
        items = [keys.deferred_item(item.request_id) for item, _ in answers]
        results = [part for item, response in answers for part in (item.entry, response.SerializeToString())]
        return [bool(kept) for kept in await self._scripts.run("store_results", items, [computed_by, *results])]

    async def acknowledge(self, claimed: Sequence[Claimed]) -> int:
        """Acknowledge work whose answer, or other end, is stored. Returns how many were published by this."""
        items = [keys.deferred_item(item.request_id) for item in claimed]
        return sum(await self._scripts.run("acknowledge", items, [item.entry for item in claimed]))

    async def fail(self, item: Claimed, failure: str, computed_by: str) -> bool:
        """Give the work up for a reason of its own, and say which. False when an earlier end or answer stands."""
        arguments = [computed_by, item.entry, failure]
        return bool(await self._scripts.run("fail", [keys.deferred_item(item.request_id)], arguments))

    async def dead_letter(self, item: Claimed, failure: str, computed_by: str, attempts: int) -> bool:
        """The same, and keep the work as a dead letter, which was tried by itself so many times."""
        arguments = [computed_by, item.entry, failure, item.request_id, item.work.SerializeToString(), attempts]
        both = [keys.deferred_item(item.request_id), keys.dead_letters()]
        dead_lettered = bool(await self._scripts.run("fail", both, arguments))
        self._scripts.report_dead_letters(dead_lettered)
        return dead_lettered

    async def waiting(self) -> int:
        """Requests accepted and not finished."""
        try:
            return int(await self._redis.xlen(keys.deferred_stream()))
        except (redis.RedisError, OSError) as error:
            raise StoreUnavailable(f"Redis did not answer: {error}") from error

    def _outcome(self, code: int, state: bytes) -> tuple[State, bool] | QueueFull:
        if code < 0:
            return QueueFull(f"{self._settings.deferred_bound} deferred requests are waiting; submit again later")
        return State(state.decode()), code == 0
