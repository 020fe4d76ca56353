"""The replica's tie to the others: tells Redis about itself four times a second and keeps the snapshot fresh."""

import asyncio
import dataclasses
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from google.protobuf.message import DecodeError

from protos.scoring.v1.storage_pb2 import ReplicaState, ReplicaStates
from realtime_service.cluster import heartbeat
from realtime_service.cluster.heartbeat import PERIOD_SECONDS
from realtime_service.routing import overrides
from realtime_service.routing.overrides import Policy
from realtime_service.routing.snapshot import Replica, Snapshot, as_real_time, options
from shared_model.errors import BadInput, ReleaseError
from shared_model.redis_store import keys
from shared_model.releases import pointer
from shared_model.releases.pointer import Pointer
from shared_model.types import ServingPath

#: A replica that has not been heard of for this long is gone; counted by Redis, so hosts' clocks do not matter.
TTL_MS = 1000
#: Heartbeats after Redis was away for which who is not listed is thought to be there: it lists them one by one again.
_FORGIVEN_BEATS = 5

_BEAT = (Path(__file__).parent / "beat.lua").read_text()

log = logging.getLogger(__name__)


class Membership:
    """`snapshot` is always there and never waits: with Redis gone it is the last one, marked as such.

    `settings`: the policy as this process's settings have it, which operators change through Redis.
    """

    def __init__(
        self,
        client: "redis.asyncio.Redis",
        initial: Snapshot,
        describe: Callable[[Sequence[ServingPath]], ReplicaState],
        settings: Policy,
    ) -> None:
        self._redis = client
        self._describe = describe
        self._settings = settings
        self._ejected: frozenset[str] = frozenset()
        self._forgiven = 0
        self._keys = (keys.replica(initial.local), keys.replicas(), keys.replica_word(), keys.routing_policy())
        self._followers: list[Callable[[Snapshot], None]] = []
        self._complaint = ""
        # By what they say of themselves.
        self._known: dict[bytes, Replica] = {}
        self._unreadable: set[bytes] = set()
        # What the snapshot's pointer was read from.
        self._pointed: dict[bytes, bytes] | None = None
        self.snapshot = dataclasses.replace(initial, policy=settings)

    def open_lane(self, lane: ServingPath) -> None:
        """A lane of this replica takes requests from now on."""
        if lane not in self.snapshot.lanes:
            self.snapshot = dataclasses.replace(self.snapshot, lanes=(*self.snapshot.lanes, lane))

    def followed_by(self, follower: Callable[[Snapshot], None]) -> None:
        """Call `follower` with every snapshot that Redis has told."""
        self._followers.append(follower)

    def eject(self, replicas: Iterable[str]) -> None:
        """Nothing is sent to these until they are not among those of a later call."""
        self._ejected = frozenset(replicas)
        self.snapshot = dataclasses.replace(self.snapshot, **self._with(self.snapshot.replicas))

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
            self._forgiven = _FORGIVEN_BEATS
            return
        if not self.snapshot.redis_available:
            log.info("Redis is reached: other replicas, deferred work and the policy are known from now on")
        self.snapshot = fresh
        self._forgiven = max(0, self._forgiven - 1)
        for follower in self._followers:
            follower(fresh)

    async def leave(self) -> None:
        """Take this replica off the list, so that nobody sends to it any more."""
        try:
            await self._redis.delete(keys.replica(self.snapshot.local))
            await self._redis.srem(keys.replicas(), self.snapshot.local)
        except (redis.RedisError, OSError) as error:
            log.warning("could not sign off (%s): the entry expires in %d ms", error, TTL_MS)

    async def _beat(self) -> Snapshot:
        own, local = self._describe(self.snapshot.lanes), self.snapshot.local
        state = own.SerializeToString()
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.eval(
                _BEAT, len(self._keys), *self._keys, local, state, TTL_MS, secrets.token_hex(16), keys.replica("")
            )
            pipe.hgetall(keys.release_pointer())
            (word, policy, states), pointed = await pipe.execute()
        # After the last wait: what has changed meanwhile stays.
        return dataclasses.replace(
            self.snapshot,
            **self._read_replicas(states),
            policy=self._read_policy(policy),
            pointer=self._read_pointer(pointed),
            word=word.decode(),
            redis_available=True,
        )

    def _read_replicas(self, states: bytes) -> dict[str, Any]:
        """Fields of the snapshot that have changed. Replicas that say the same of themselves are told their numbers."""
        known, heard, unreadable = self._known, dict[bytes, Replica](), set[bytes]()
        for told in ReplicaStates.FromString(states).replicas:
            if replica := self._hear(told):
                heard[told.profile] = replica
            else:
                unreadable.add(told.profile)
        self._unreadable = unreadable
        if self._forgiven:
            listed = {replica.id for replica in heard.values()}
            heard.update((profile, it) for profile, it in known.items() if it.id not in listed)
        here = (replica.options for replica in heard.values() if replica.id == self.snapshot.local)
        load = {"load": {option.path: option.load for option in next(here, ())}}
        if heard.keys() == known.keys():
            return load
        # Of who is gone, those who wait for its answers hold what was sent.
        self._known = heard
        return {**load, **self._with(sorted(heard.values(), key=lambda replica: replica.id))}

    def _hear(self, told: ReplicaState) -> Replica | None:
        """None for a heartbeat that this version cannot read: the fleet goes on without that replica."""
        profile = told.profile
        try:
            replica = self._known.get(profile) or heartbeat.meet(profile, self.snapshot.by_id)
            heartbeat.hear(replica, told)
        except (DecodeError, ValueError) as error:
            if profile not in self._unreadable:
                log.error("a replica is left out, its heartbeat cannot be read: %s", error)
            return None
        return replica

    def _with(self, replicas: Sequence[Replica]) -> dict[str, Any]:
        """Fields of a snapshot of these replicas."""
        found = options(replicas, self.snapshot.local, self._ejected)
        return {"replicas": tuple(replicas), "options": found, "real_time": as_real_time(found)}

    def _read_policy(self, stored: bytes | None) -> Policy:
        """What operators set, over the settings; the policy before where that cannot be used."""
        try:
            changed = overrides.read(stored, self._settings)
        except BadInput as error:
            if str(error) != self._complaint:
                log.error("the routing policy in Redis is refused, the one before stays: %s", error)
            self._complaint = str(error)
            return self.snapshot.policy
        self._complaint = ""
        if changed.version != self.snapshot.policy.version:
            log.info("routing policy %d is in force", changed.version)
        return changed

    def _read_pointer(self, pointed: dict[bytes, bytes]) -> Pointer | None:
        if pointed == self._pointed:
            return self.snapshot.pointer
        try:
            read = pointer.decode(pointed)
        except ReleaseError as error:
            # Whoever damaged it, the release we serve is as good as before.
            log.error("%s; this replica goes on with what it knows", error)
            return self.snapshot.pointer
        self._pointed = pointed
        return read
