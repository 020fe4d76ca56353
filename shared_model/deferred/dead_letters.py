"""Dead letters: work that failed by itself or whose consumers died. Operators list and replay them."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import redis.asyncio

from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model.deferred.scripts import Scripts, answered, ignore_unanswered
from shared_model.errors import BadInput
from shared_model.redis_store import keys
from shared_model.settings import DeferredSettings
from shared_model.trust import audit
from shared_model.trust.keyring import WITHOUT_KEYS, Keyring

#: Dead letters read, or accepted again, in one round trip.
_PAGE = 500
#: Characters of their names in the audit.
_NAMES = 1000


@dataclass(frozen=True)
class DeadLetter:
    """`deliveries`: the number of consumers that claimed it, or of attempts by the one that dead-lettered it."""

    entry: bytes
    request_id: str
    work: DeferredWork
    deliveries: int

    @property
    def dead_lettered_at(self) -> datetime:
        """The time by Redis' clock."""
        return datetime.fromtimestamp(int(self.entry.partition(b"-")[0]) / 1000, UTC)


class DeadLetters:
    """Every call raises StoreUnavailable if Redis does not answer."""

    def __init__(self, client: "redis.asyncio.Redis", settings: DeferredSettings) -> None:
        self._redis = client
        self._settings = settings
        self._scripts = Scripts(client, settings, ignore_unanswered)

    async def count(self) -> int:
        return int(await answered(self._redis.xlen(keys.dead_letters())))

    async def all(self) -> AsyncIterator[DeadLetter]:
        """Oldest first."""
        start = "-"
        while page := await answered(self._redis.xrange(keys.dead_letters(), start, "+", count=_PAGE)):
            for entry, fields in page:
                work = DeferredWork.FromString(fields[b"work"])
                yield DeadLetter(entry, fields[b"id"].decode(), work, int(fields[b"deliveries"]))
            start = f"({page[-1][0].decode()}"

    async def replay(self, letters: Iterable[DeadLetter], trusted: Keyring = WITHOUT_KEYS) -> int:
        """Accept these again, as if they had never been delivered. Returns how many were accepted; letters that another
        process has replayed meanwhile are skipped. Each round trip leaves a record in the audit, to whose stream only
        operators may write where Redis has users. Raises: SettingError where an operator's key is missing."""
        wanted, replayed = list(letters), 0
        for start in range(0, len(wanted), _PAGE):
            page = wanted[start : start + _PAGE]
            items = [keys.deferred_item(letter.request_id) for letter in page]
            names = ", ".join(letter.request_id for letter in page)[:_NAMES]
            record = audit.arguments(trusted, "dead-letters replay", f"{len(page)} dead letters: {names}", "accepted")
            arguments = [self._settings.deferred_wait_seconds, *record, *(letter.entry for letter in page)]
            streams = [keys.dead_letters(), keys.audit("deferred")]
            replayed += await self._scripts.run_replicated("replay", [*streams, *items], arguments)
        return replayed

    async def find(self, request_ids: Iterable[str]) -> list[DeadLetter]:
        """The dead letters of these requests. Raises: BadInput naming the ids that have no dead letter."""
        wanted = dict.fromkeys(request_ids)
        found = [letter async for letter in self.all() if letter.request_id in wanted]
        if missing := wanted.keys() - {letter.request_id for letter in found}:
            raise BadInput("ID", f"{', '.join(map(repr, sorted(missing)))}: no such dead letter; `list` names them")
        return found
