"""The replica's tie to the others: tells Redis about itself four times a second and keeps the snapshot fresh."""

import asyncio
import dataclasses
import logging
import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import redis
import redis.asyncio

from protos.scoring.v1.storage_pb2 import LaneLoad, ReplicaState, ReplicaStates
from realtime_service.routing import policies
from realtime_service.routing.policy import Policy
from realtime_service.routing.snapshot import Option, Replica, Sent, Snapshot, as_real_time, options, same_lanes
from realtime_service.settings import SERVED
from shared_model import keys
from shared_model.errors import BadInput, ReleaseError
from shared_model.releases import pointer
from shared_model.releases.pointer import Pointer
from shared_model.types import ServingPath

PERIOD_SECONDS = 0.25
#: A replica that has not been heard of for this long is gone; counted by Redis, so hosts' clocks do not matter.
TTL_MS = 1000
#: Heartbeats after Redis was away for which who is not listed is thought to be there: it lists them one by one again.
_FORGIVEN_BEATS = 5

_BEAT = (Path(__file__).parent / "lua" / "beat.lua").read_text()

log = logging.getLogger(__name__)


class Registry:
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
        snapshot = self.snapshot
        found = options(snapshot.replicas, snapshot.local, self._ejected)
        self.snapshot = dataclasses.replace(snapshot, options=found, real_time=as_real_time(found))

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
            log.info("Redis is there")
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
        replicas, snapshot = self._read_replicas(states), self.snapshot
        found, real_time = snapshot.options, snapshot.real_time
        if not same_lanes(replicas, snapshot.replicas):
            found = options(replicas, snapshot.local, self._ejected)
            real_time = as_real_time(found)
        # After the last wait: what has changed meanwhile stays.
        return dataclasses.replace(
            snapshot,
            load={ServingPath(path): load.load for path, load in own.load.items()},
            replicas=replicas,
            options=found,
            real_time=real_time,
            policy=self._read_policy(policy),
            pointer=self._read_pointer(pointed),
            word=word.decode(),
            redis_available=True,
        )

    def _read_replicas(self, states: bytes) -> tuple[Replica, ...]:
        known = self.snapshot.by_id
        told = ReplicaStates.FromString(states).replicas
        # Of who is gone, those who wait for its answers hold what was sent.
        read = [read_replica(state, known.get(state.replica.id)) for state in told]
        if self._forgiven:
            listed = {replica.described.id for replica in read}
            read += [replica for replica in self.snapshot.replicas if replica.described.id not in listed]
        return tuple(sorted(read, key=lambda replica: replica.described.id))

    def _read_policy(self, stored: bytes | None) -> Policy:
        """What operators set, over the settings; the policy before where that cannot be used."""
        try:
            changed = policies.read(stored, self._settings)
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


def read_replica(state: ReplicaState, before: Replica | None) -> Replica:
    """What a heartbeat says of a replica. A lane without a prediction does not take requests. `before`: as it was known
    until now. While its lanes are the same they are kept, with what is under way to them, and are told new numbers.

    A prediction is a heartbeat old when it is used, and the device has worked meanwhile. Were it not taken off, what
    had been full for a moment would get no calls until the next heartbeat; where it is too little, the replica itself
    refuses, which costs a round trip. A less urgent lane answers no sooner than one more urgent.
    """
    described, loads, soonest, soonest_real_time = state.replica, state.load, 0.0, 0.0
    told = {path: load for path in SERVED if (load := loads.get(path))}
    lanes = _lanes(described.id, told, before.options if before else ())
    # With many replicas this is most of what a heartbeat costs: one look into a message for each number, no calls.
    for lane in lanes:
        load, urgent = told[lane.path], lane.real_time
        per_text, rho, places = load.per_text_ms / 1000, load.load, _places(load, lane.sent)
        # What is under way was in what is predicted, too, and is counted apart.
        finish = load.predicted_finish_ms / 1000 - max(PERIOD_SECONDS, lane.sent.seconds)
        soonest = max(soonest, per_text, finish)
        lane.finish, lane.per_text, lane.load, lane.places = soonest, per_text, rho, places
        if urgent:
            finish = load.real_time_finish_ms / 1000 - max(PERIOD_SECONDS, urgent.sent.seconds)
            soonest_real_time = max(soonest_real_time, per_text, finish)
            urgent.finish, urgent.per_text, urgent.load, urgent.places = soonest_real_time, per_text, rho, places
    return Replica(described, lanes, state.wanted)


def _lanes(replica: str, paths: Iterable[ServingPath], before: tuple[Option, ...]) -> tuple[Option, ...]:
    if [lane.path for lane in before] == list(paths):
        return before
    known = {lane.path: lane for lane in before}
    return tuple(known.get(path) or _lane(replica, path) for path in paths)


def _lane(replica: str, path: ServingPath) -> Option:
    """A lane of which nothing is known."""
    return Option(replica, path, math.inf, 0.0, 0.0, real_time=Option(replica, path, math.inf, 0.0, 0.0))


def _places(load: LaneLoad, ours: Sent) -> float:
    """Texts of ours that a lane takes at a time: all but those of others that wait there."""
    most = load.max_concurrent_requests
    return most - max(0, load.waiting - ours.texts) if most else math.inf
