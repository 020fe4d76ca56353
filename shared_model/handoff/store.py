"""The deferred stream and its results, in Redis."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from protos.scoring.v1.scoring_pb2 import ScoreResponse
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model import keys
from shared_model.errors import QueueFull, StoreUnavailable
from shared_model.types import DeferredState

GROUP = "tandem"

#: Unfinished requests the stream holds before it refuses more.
DEFAULT_BOUND = 1_000_000
#: Seconds an unfinished request, and then its result, is kept.
KEEP_SECONDS = 7 * 24 * 3600

_LUA = Path(__file__).parent / "lua"


State = DeferredState


@dataclass(frozen=True)
class Item:
    """What is known of a submitted request. `response` once published, `failure` once failed."""

    state: State
    response: ScoreResponse | None = None
    computed_by: str = ""
    failure: str = ""


@dataclass(frozen=True)
class Claimed:
    """Work this consumer holds until its lease ends. Finish it by entry id."""

    entry: bytes
    request_id: str
    work: DeferredWork


class Handoff:
    """Every call raises StoreUnavailable when Redis does not answer; nothing is acknowledged that is not stored."""

    def __init__(self, client: "redis.asyncio.Redis", bound: int = DEFAULT_BOUND) -> None:
        self._redis = client
        self._bound = bound
        self._submit = client.register_script((_LUA / "submit.lua").read_text())
        self._claimed = client.register_script((_LUA / "mark_claimed.lua").read_text())
        self._finish = client.register_script((_LUA / "finish.lua").read_text())

    async def submit(self, request_id: str, work: DeferredWork) -> tuple[State, bool]:
        """Store work once. Returns its state and whether this id had been accepted before. Raises: QueueFull."""
        code, state = await _answer(
            self._submit(
                keys=[keys.deferred_stream(), keys.deferred_item(request_id)],
                args=[request_id, work.SerializeToString(), self._bound, KEEP_SECONDS],
            )
        )
        if code < 0:
            raise QueueFull(f"{self._bound} deferred requests are waiting; submit again later")
        return State(state.decode()), code == 0

    async def get(self, request_id: str) -> Item | None:
        """None if no such request was accepted, or its time to be kept is over."""
        fields = await _answer(self._redis.hgetall(keys.deferred_item(request_id)))
        if not fields:
            return None
        return Item(
            state=State(fields[b"state"].decode()),
            response=ScoreResponse.FromString(fields[b"result"]) if b"result" in fields else None,
            computed_by=fields.get(b"computed_by", b"").decode(),
            failure=fields.get(b"failure", b"").decode(),
        )

    async def states(self, request_ids: Sequence[str]) -> list[State | None]:
        """How far each is, in one round trip; None where `get` would say None."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for request_id in request_ids:
                pipe.hget(keys.deferred_item(request_id), "state")
            return [State(state.decode()) if state else None for state in await _answer(pipe.execute())]

    async def claim(self, consumer: str, count: int, lease_seconds: float) -> list[Claimed]:
        """Up to `count` requests: first those whose lease ran out, then new ones."""
        stream = keys.deferred_stream()
        idle_ms = int(lease_seconds * 1000)
        try:
            expired = await _answer(
                self._redis.xautoclaim(stream, GROUP, consumer, min_idle_time=idle_ms, start_id="0-0", count=count)
            )
            entries = [entry for entry in expired[1] if entry[1]]
            if len(entries) < count:
                fresh = await _answer(
                    self._redis.xreadgroup(GROUP, consumer, {stream: ">"}, count=count - len(entries))
                )
                entries += _entries(fresh)
        except _NoGroup:
            # A flushed or restarted Redis has lost the group: make it anew and let the next call claim.
            await self._create_group()
            return []
        claimed = [Claimed(entry, f[b"id"].decode(), DeferredWork.FromString(f[b"work"])) for entry, f in entries]
        await self._mark_claimed(claimed)
        return claimed

    async def publish(self, item: Claimed, response: ScoreResponse, computed_by: str) -> bool:
        """Write the answer and acknowledge the work. False when an earlier answer stands."""
        return await self._end(item, State.PUBLISHED, response.SerializeToString(), computed_by)

    async def fail(self, item: Claimed, failure: str, computed_by: str) -> bool:
        """Give the work up for a reason of its own, and say which."""
        return await self._end(item, State.FAILED, failure.encode(), computed_by)

    async def waiting(self) -> int:
        """Requests accepted and not finished."""
        return int(await _answer(self._redis.xlen(keys.deferred_stream())))

    async def _mark_claimed(self, claimed: list[Claimed]) -> None:
        if claimed:
            await _answer(self._claimed(keys=[keys.deferred_item(item.request_id) for item in claimed]))

    async def _end(self, item: Claimed, state: State, value: bytes, computed_by: str) -> bool:
        kept = await _answer(
            self._finish(
                keys=[keys.deferred_stream(), keys.deferred_item(item.request_id)],
                args=[GROUP, item.entry, state, value, computed_by, KEEP_SECONDS],
            )
        )
        return bool(kept)

    async def _create_group(self) -> None:
        try:
            await self._redis.xgroup_create(keys.deferred_stream(), GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise StoreUnavailable(f"Redis refused: {error}") from error
        except (redis.RedisError, OSError) as error:
            raise StoreUnavailable(f"Redis did not answer: {error}") from error


class _NoGroup(Exception):
    """The consumer group is not there."""


async def _answer(call: Any) -> Any:
    """Await a Redis command and speak of its failure in our words."""
    try:
        return await call
    except redis.ResponseError as error:
        if "NOGROUP" in str(error):
            raise _NoGroup from error
        raise StoreUnavailable(f"Redis refused: {error}") from error
    except (redis.RedisError, OSError) as error:
        raise StoreUnavailable(f"Redis did not answer: {error}") from error


def _entries(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Entries of an XREADGROUP reply on one stream: a list of pairs in RESP2, a map of lists in RESP3."""
    if not reply:
        return []
    if isinstance(reply, dict):
        return [entry for batch in next(iter(reply.values())) for entry in batch]
    return list(reply[0][1])
