"""Membership: publishes this replica's heartbeat in Redis four times a second, and refreshes the snapshot."""

import asyncio
import dataclasses
import logging
import math
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from google.protobuf.message import DecodeError

from protos.scoring.v1.storage_pb2 import ReplicaState, ReplicaStates
from realtime_service.cluster import heartbeat
from realtime_service.cluster.heartbeat import PERIOD_SECONDS
from realtime_service.cluster.heartbeat_trust import HeartbeatTrust
from realtime_service.cluster.worker_loads import WorkerLoads
from realtime_service.routing import overrides
from realtime_service.routing.overrides import Policy
from realtime_service.routing.snapshot import Options, Replica, Snapshot, as_real_time, options
from shared_model.clock import Clock, SystemClock
from shared_model.errors import BadInput, ReleaseError, Untrusted
from shared_model.redis_store import keys
from shared_model.releases import pointer
from shared_model.releases.pointer import Pointer
from shared_model.trust import policy_signature
from shared_model.trust.keyring import WITHOUT_KEYS, Keyring
from shared_model.types import ServingPath

#: A heartbeat expires after this time, by Redis' clock, so that the clocks of hosts do not matter.
TTL_MS = 1000
#: Re-registration grace period: after a Redis outage, known replicas count as alive for this many heartbeats, because
#: they re-register one at a time.
_GRACE_BEATS = 5
#: Seconds for which a router keeps endpoints of a lane or release that has no others after their heartbeats expired: a
#: starved host writes late, but may answer. Few, so that one that is stopped gets no call after 2 s: the last endpoint
#: is never ejected.
LATE_SECONDS = 0.5

_BEAT = (Path(__file__).parent / "beat.lua").read_text()

_CLOCK = SystemClock()

log = logging.getLogger(__name__)


class Membership:
    """`snapshot` never waits for Redis: while Redis is not reachable it is the last one, marked as such.

    `settings`: the policy of this process's settings, which operators' numbers in Redis override. `trusted`: verifies
    the heartbeats of others, pointer and policy. `worker_loads`: None for a process alone.
    """

    def __init__(
        self,
        client: "redis.asyncio.Redis",
        initial: Snapshot,
        describe: Callable[[Sequence[ServingPath]], ReplicaState],
        settings: Policy,
        trusted: Keyring = WITHOUT_KEYS,
        clock: Clock = _CLOCK,
        worker_loads: WorkerLoads | None = None,
    ) -> None:
        self._redis = client
        self._trusted = trusted
        self._clock = clock
        self._heartbeats = HeartbeatTrust(trusted, clock)
        self._describe = describe
        self.worker_loads = worker_loads
        self._settings = settings
        self._ejected: frozenset[str] = frozenset()
        self._grace_beats_left = 0
        #: When the last endpoints of a lane or release were missing first; infinity while none are.
        self._missing_since = math.inf
        self._keys = (keys.replica(initial.local), keys.replicas(), keys.replica_word())
        self._subscribers: list[Callable[[Snapshot], None]] = []
        self._complaint = ""
        # By profile.
        self._known: dict[bytes, Replica] = {}
        self._unreadable: set[bytes] = set()
        # By model, the stored form that the snapshot's pointer was read from, or a damaged one that has been logged.
        self._pointed: dict[str, dict[bytes, bytes]] = {"": {}}
        self.snapshot = dataclasses.replace(initial, policy=settings)

    def open_lane(self, lane: ServingPath) -> None:
        """Announce a lane of this replica that takes requests."""
        if lane not in self.snapshot.lanes:
            self.snapshot = dataclasses.replace(self.snapshot, lanes=(*self.snapshot.lanes, lane))

    def subscribe(self, follower: Callable[[Snapshot], None]) -> None:
        """Call `follower` with every snapshot read from Redis."""
        self._subscribers.append(follower)

    def eject(self, replicas: Iterable[str]) -> None:
        """Set the replicas that no request is forwarded to."""
        self._ejected = frozenset(replicas)
        self.snapshot = dataclasses.replace(self.snapshot, **self._with(self.snapshot.replicas))

    async def run(self) -> None:
        """Publish heartbeats until cancelled."""
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
            self._grace_beats_left = _GRACE_BEATS
            return
        if not self.snapshot.redis_available:
            log.info("Redis is reached: other replicas, deferred work and the policy are known from now on")
        self.snapshot = fresh
        self._grace_beats_left = max(0, self._grace_beats_left - 1)
        for follower in self._subscribers:
            follower(fresh)

    async def leave(self) -> None:
        """Deregister this replica, so that no request is forwarded to it any more."""
        try:
            await self._redis.delete(keys.replica(self.snapshot.local))
            await self._redis.srem(keys.replicas(), self.snapshot.local)
        except (redis.RedisError, OSError) as error:
            log.warning("could not deregister (%s): the entry expires in %d ms", error, TTL_MS)

    async def _beat(self) -> Snapshot:
        own, local = self._describe(self.snapshot.lanes), self.snapshot.local
        state = self._heartbeats.write(own)
        # Without a cluster key, or among replicas of a former version, the token in Redis takes its place.
        new_token = "" if self._trusted.cluster and not self._trusted.accept_unsigned else secrets.token_hex(16)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.eval(_BEAT, len(self._keys), *self._keys, local, state, TTL_MS, new_token, keys.replica(""))
            # The models that were known at the last heartbeat: one more is seen by the next one.
            for model in self._pointed:
                pipe.hgetall(keys.release_pointer(model))
            pipe.smembers(keys.release_models())
            # Not by the script: Redis 7 wants write access to all keys of a script, and a replica may only read this.
            pipe.get(keys.routing_policy())
            (cluster_token, states), *pointed, models, policy = await pipe.execute()
        # Built after the last await, so that concurrent changes of the snapshot are kept.
        return dataclasses.replace(
            self.snapshot,
            **self._read_replicas(states),
            policy=self._read_policy(policy),
            pointers=self._read_pointers(pointed, {name.decode() for name in models}),
            cluster_token=cluster_token.decode(),
            redis_available=True,
        )

    def _read_replicas(self, states: bytes) -> dict[str, Any]:
        """The changed fields of the snapshot. Replicas with an unchanged profile are updated in place."""
        known, heard, unreadable = self._known, dict[bytes, Replica](), set[bytes]()
        self._heartbeats.begin()
        for stored in ReplicaStates.FromString(states).replicas:
            self._read_replica(stored, heard, unreadable)
        self._unreadable = unreadable
        listed = {replica.id for replica in heard.values()}
        missing = {profile: it for profile, it in known.items() if it.id not in listed}
        if self._may_be_late(missing.values(), heard.values()) or self._grace_beats_left:
            heard.update(missing)
        here = (replica.options for replica in heard.values() if replica.id == self.snapshot.local)
        utilisation = {"utilisation": {option.path: option.utilisation for option in next(here, ())}}
        if heard.keys() == known.keys():
            return utilisation
        # Calls under way to a replica that is gone keep its options alive.
        self._known = heard
        return {**utilisation, **self._with(sorted(heard.values(), key=lambda replica: replica.id))}

    def _may_be_late(self, missing: Collection[Replica], heard: Collection[Replica]) -> bool:
        """Whether the missing replicas stay for now: a router has no others of a lane or a release."""
        if self.snapshot.lanes or not missing or self._options(missing).keys() <= self._options(heard).keys():
            self._missing_since = math.inf
            return False
        now = self._clock.monotonic()
        self._missing_since = min(self._missing_since, now)
        return now - self._missing_since < LATE_SECONDS

    def _read_replica(self, stored: bytes, heard: dict[bytes, Replica], unreadable: set[bytes]) -> None:
        """Add a replica to those `heard` of. One whose heartbeat this version cannot read, or does not trust, is left
        out."""
        profile = stored
        try:
            state = self._heartbeats.open(stored)
            if state is None:
                return
            profile = state.profile
            replica = self._known.get(profile) or self._introduced(profile)
            if self._heartbeats.is_fresh(replica.id, state):
                heartbeat.apply(replica, state)
                heard[profile] = replica
        except (DecodeError, ValueError) as error:
            unreadable.add(profile)
            if profile not in self._unreadable:
                log.error("a replica is left out, its heartbeat cannot be read: %s", error)

    def _introduced(self, profile: bytes) -> Replica:
        """The replica of a new or changed profile. Raises: as `heartbeat.read_profile`."""
        replica = heartbeat.read_profile(profile, self.snapshot.by_id)
        if self.worker_loads:
            self.worker_loads.attach(replica)
        return replica

    def _with(self, replicas: Sequence[Replica]) -> dict[str, Any]:
        """Fields of a snapshot of these replicas."""
        found = self._options(replicas)
        return {"replicas": tuple(replicas), "options": found, "real_time": as_real_time(found)}

    def _options(self, replicas: Iterable[Replica]) -> Options:
        return options(replicas, self.snapshot.local, self._ejected)

    def _read_policy(self, stored: bytes | None) -> Policy:
        """The policy with operators' numbers; the former policy if the stored one is invalid."""
        try:
            if stored:
                policy_signature.check(stored, self._trusted)
            changed = overrides.read(stored, self._settings)
        except (BadInput, Untrusted) as error:
            if str(error) != self._complaint:
                log.error("the routing policy in Redis is refused, the one before stays: %s", error)
            self._complaint = str(error)
            return self.snapshot.policy
        self._complaint = ""
        if changed.version != self.snapshot.policy.version:
            log.info("routing policy %d is in force", changed.version)
        return changed

    def _read_pointers(self, pointed: Sequence[dict[bytes, bytes]], models: Collection[str]) -> dict[str, Pointer]:
        """`pointed`: of the models known so far; `models`: all that Redis names beside the default one."""
        found = dict(self.snapshot.pointers)
        for (model, before), stored in zip(self._pointed.items(), pointed, strict=True):
            if stored == before:
                continue
            self._pointed[model] = stored
            try:
                if read := pointer.decode(stored, self._trusted, model):
                    found[model] = read
            except ReleaseError as error:
                # A damaged pointer does not affect the release that is being served.
                log.error("%s; this replica keeps the last valid pointer", error)
        self._pointed = {**self._pointed, **{model: {} for model in models if model not in self._pointed}}
        return found
