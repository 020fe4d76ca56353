"""Quotas of callers: how many texts a second one may have scored, on all replicas together. No request waits for Redis.

Each replica admits its share and tells the others, by heartbeat, what each caller wants of it. With D the quota or, if
that is less, what the caller wants of all replicas, and R the rest that is kept for where the caller may come next:

    share here = quota × (wanted here + R ÷ replicas) ÷ (wanted of all replicas + R)
    R = max(½ (quota − D), quota ÷ 50)

A caller whom nobody knows may so have quota ÷ replicas anywhere. The shares add up to the quota at any time, also while
demand moves: of what it wants here a replica counts the least of what it told lately, which is never more than what any
other has heard of it. So a share grows after half a second to one second, and only when the others give way.

What a caller can save up is a fifth of a second of its share, or two texts. A request may be larger than that: it is
admitted when all is there that can be, and what it took beyond that is paid back before the next.
"""

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from realtime_service.errors import Overloaded
from realtime_service.routing.snapshot import Replica, Snapshot

#: Heartbeats of ours in which demand was told before it counts: any other has then heard of it, also one that beats at
#: half our pace.
_BEATS_TOLD = 3
#: Heartbeats after which a replica that is not listed any more is thought gone. A Redis that comes back lists them one
#: by one as they return.
_BEATS_MISSED = 4
#: What can be saved up: seconds of the share, or so many texts, without which few evenly spaced ones would not fit.
_SAVED_SECONDS = 0.2
_SAVED_TEXTS = 2.0
#: Demand is an average over a second, or over so many texts of the quota where that takes longer.
_MEMORY_SECONDS = 1.0
_MEMORY_TEXTS = 30.0
#: Callers told in a heartbeat, and how many of those who called last are looked at for it.
_TOLD = 256
_LOOKED_AT = 1024
#: Demand below this part of the quota is not told: what is kept for newcomers covers it.
_NEGLIGIBLE = 0.01
#: Callers that are remembered, and for how many seconds without a call.
_REMEMBERED = 10_000
_REMEMBERED_SECONDS = 60.0


@dataclass(slots=True)
class _Bucket:
    """One caller here. `rate`: its share, texts a second, as of heartbeat number `beat`; `tokens`: texts it may have
    now, below 0 while it pays back; `work`: texts wanted lately, which fade with `memory` (seconds)."""

    at: float
    rate: float
    tokens: float
    memory: float
    beat: int
    work: float = 0.0

    @property
    def size(self) -> float:
        return _size(self.rate)

    def wanted(self, now: float) -> float:
        """Texts a second."""
        return self.work * math.exp((self.at - now) / self.memory) / self.memory

    def is_paid_back(self, now: float) -> bool:
        return self.tokens + (now - self.at) * self.rate >= self.size


class Quotas:
    """Told the time, in monotonic seconds; of one thread."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._local = snapshot.local
        self._policy = snapshot.policy
        self._beat = 0
        self._told: deque[Mapping[str, float]] = deque([{}] * _BEATS_TOLD, _BEATS_TOLD)
        self._others: dict[str, Replica] = {}
        self._heard_of: dict[str, int] = {}
        # In the order of their last calls, the latest last.
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        """Callers that are remembered."""
        return len(self._buckets)

    def heard(self, snapshot: Snapshot) -> None:
        """Share anew, after each heartbeat that reached Redis. Until the next the shares stay as they are."""
        self._beat += 1
        self._policy = snapshot.policy
        self._told.append(self._take_others(snapshot.replicas))
        for replica in [it for it, beat in self._heard_of.items() if beat <= self._beat - _BEATS_MISSED]:
            del self._heard_of[replica], self._others[replica]

    def share(self, caller: str) -> float:
        """Texts a second that the caller may have here; infinite without a quota."""
        quota = self._quota(caller)
        return self._share(caller, quota) if quota else math.inf

    def admit(self, caller: str, texts: int, now: float) -> None:
        """Raises: Overloaded, with a retry hint, where that is more than the caller may have now."""
        quota = self._quota(caller)
        if not quota:
            return
        bucket = self._bucket(caller, quota, now)
        bucket.work = min(bucket.work + texts, quota * bucket.memory)
        missing = min(texts, bucket.size) - bucket.tokens
        if missing > 0:
            name = f"quota.{caller}" if caller in self._policy.quotas else "quota"
            why = f"the caller is over its quota of {quota:g} texts a second{self._policy.whose(name)}"
            raise Overloaded(why, missing / bucket.rate)
        bucket.tokens -= texts

    def wanted(self, now: float) -> dict[str, float]:
        """What callers with a quota want of this replica, texts a second: those nearest to their quotas."""
        self._forget(now)
        lately = islice(reversed(self._buckets.items()), _LOOKED_AT)
        told = [(caller, bucket.wanted(now), self._quota(caller)) for caller, bucket in lately]
        near = [it for it in told if it[2] and it[1] > it[2] * _NEGLIGIBLE]
        return {caller: wanted for caller, wanted, _ in heapq.nlargest(_TOLD, near, key=lambda it: it[1] / it[2])}

    def _take_others(self, replicas: Iterable[Replica]) -> Mapping[str, float]:
        """Note what others told. Returns what this replica told, as they see it."""
        told: Mapping[str, float] = {}
        for replica in replicas:
            if replica.id == self._local:
                told = replica.wanted
            else:
                self._others[replica.id] = replica
                self._heard_of[replica.id] = self._beat
        return told

    def _quota(self, caller: str) -> float:
        return self._policy.quotas.get(caller, self._policy.quota)

    def _bucket(self, caller: str, quota: float, now: float) -> _Bucket:
        """The caller's, as of now."""
        bucket = self._buckets.get(caller)
        if bucket is None:
            return self._remember(caller, quota, now)
        self._buckets.move_to_end(caller)
        elapsed, earned = now - bucket.at, bucket.rate
        bucket.work *= math.exp(-elapsed / bucket.memory)
        if bucket.beat != self._beat:
            bucket.rate, bucket.beat, bucket.memory = self._share(caller, quota), self._beat, _memory(quota)
            # Which part of the time the new share held is not known.
            earned = min(earned, bucket.rate)
        bucket.tokens = min(bucket.size, bucket.tokens + elapsed * earned)
        bucket.at = now
        return bucket

    def _remember(self, caller: str, quota: float, now: float) -> _Bucket:
        if len(self._buckets) >= _REMEMBERED:
            self._buckets.popitem(last=False)
        share = self._share(caller, quota)
        bucket = _Bucket(now, share, _size(share), _memory(quota), self._beat)
        self._buckets[caller] = bucket
        return bucket

    def _share(self, caller: str, quota: float) -> float:
        here = min([told.get(caller, 0.0) for told in self._told])
        everywhere = here + sum([other.wanted.get(caller, 0.0) for other in self._others.values()])
        kept = max((quota - everywhere) / 2, quota / 50)
        return quota * (here + kept / (len(self._others) + 1)) / (everywhere + kept)

    def _forget(self, now: float) -> None:
        """Who has long not called is as good as unknown, once nothing is owed."""
        while self._buckets:
            longest = next(iter(self._buckets.values()))
            if now - longest.at < _REMEMBERED_SECONDS or not longest.is_paid_back(now):
                return
            self._buckets.popitem(last=False)


def _size(share: float) -> float:
    """Texts that may be saved up."""
    return max(_SAVED_TEXTS, share * _SAVED_SECONDS)


def _memory(quota: float) -> float:
    """Seconds over which demand is averaged: of slow callers' few texts longer, so that the shares hold still."""
    return max(_MEMORY_SECONDS, _MEMORY_TEXTS / quota)
