"""The replica's tie to the others: tells Redis about itself four times a second and keeps the snapshot fresh."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable

import redis
import redis.asyncio

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.storage_pb2 import ReplicaState
from realtime_service.routing.snapshot import Snapshot
from shared_model import keys
from shared_model.errors import ReleaseError
from shared_model.releases import pointer
from shared_model.releases.pointer import Pointer
from shared_model.types import ServingPath

PERIOD_SECONDS = 0.25
#: A replica that has not been heard of for this long is gone; counted by Redis, so hosts' clocks do not matter.
TTL_MS = 1000

log = logging.getLogger(__name__)


class Registry:
    """`snapshot` is always there and never waits: with Redis gone it is the last one, marked as such."""

    def __init__(self, client: "redis.asyncio.Redis", initial: Snapshot, describe: Callable[[], ReplicaState]) -> None:
        self._redis = client
        self._describe = describe
        self.snapshot = initial

    def open_lane(self, lane: ServingPath) -> None:
        """A lane of this replica takes requests from now on."""
        if lane not in self.snapshot.lanes:
            self.snapshot = dataclasses.replace(self.snapshot, lanes=(*self.snapshot.lanes, lane))

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            await self.run_once()
            await asyncio.sleep(PERIOD_SECONDS)

    async def run_once(self) -> None:
        try:
            fresh = await self._beat()
        except (redis.RedisError, OSError) as error:
            if self.snapshot.redis_available:
                log.warning("Redis is gone (%s): routing on the last snapshot, refusing deferred work", error)
            self.snapshot = dataclasses.replace(self.snapshot, redis_available=False)
            return
        if not self.snapshot.redis_available:
            log.info("Redis is there")
        self.snapshot = fresh

    async def leave(self) -> None:
        """Take this replica off the list, so that nobody sends to it any more."""
        try:
            await self._redis.delete(keys.replica(self.snapshot.local))
            await self._redis.srem(keys.replicas(), self.snapshot.local)
        except (redis.RedisError, OSError) as error:
            log.warning("could not sign off (%s): the entry expires in %d ms", error, TTL_MS)

    async def _beat(self) -> Snapshot:
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.set(keys.replica(self.snapshot.local), self._describe().SerializeToString(), px=TTL_MS)
            pipe.sadd(keys.replicas(), self.snapshot.local)
            pipe.smembers(keys.replicas())
            pipe.hgetall(keys.release_pointer())
            *_, ids, pointed = await pipe.execute()
        replicas = await self._read_replicas(sorted(ids))
        # After the last wait: what has changed meanwhile stays.
        return dataclasses.replace(
            self.snapshot,
            replicas=replicas,
            pointer=self._read_pointer(pointed),
            redis_available=True,
        )

    async def _read_replicas(self, ids: list[bytes]) -> tuple[ReplicaDescription, ...]:
        states = await self._redis.mget([keys.replica(replica_id.decode()) for replica_id in ids])
        if gone := [replica_id for replica_id, state in zip(ids, states, strict=True) if state is None]:
            await self._redis.srem(keys.replicas(), *gone)
        return tuple(ReplicaState.FromString(state).replica for state in states if state is not None)

    def _read_pointer(self, pointed: dict[bytes, bytes]) -> Pointer | None:
        try:
            return pointer.decode(pointed)
        except ReleaseError as error:
            # Whoever damaged it, the release we serve is as good as before.
            log.error("%s; this replica goes on with what it knows", error)
            return self.snapshot.pointer
