"""Quotas of callers: how many texts a second one may have scored, on all replicas together. No request waits for Redis.

A caller is the subject of a verified token or an address: claimed names never have a quota of their own.

Each replica admits its share of a caller's quota, and reports the caller's demand to the others by heartbeat. With D
the caller's demand at all replicas, at most the quota, and a reserve R for replicas that the caller may use next:

    share here = quota × (demand here + R ÷ replicas) ÷ (demand at all replicas + R)
    R = max(½ (quota − D), quota ÷ 50)

So a new caller may have quota ÷ replicas at any replica. The shares never add up to more than the quota, also while
demand moves: for its own demand a replica uses the minimum of its last reports, so that each other replica has seen at
least as much. So a share grows half a second to one second after the demand, when those of the others have shrunk.

Each share is a token bucket that holds a fifth of a second of it, or two texts. A larger request is admitted when the
bucket is full, and its excess is a debt of tokens that is repaid before the next request.
"""

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest

from realtime_service.errors import Overloaded
from realtime_service.routing.snapshot import Replica, Snapshot

#: Own heartbeats that have reported a demand before it counts: all others have seen it then, also one whose heartbeats
#: come at half our rate.
_REPORT_BEATS = 3
#: Heartbeats after which a replica that is no longer listed counts as gone: after a Redis outage, replicas re-register
#: one at a time.
_GONE_BEATS = 4
#: A text counts as one for each so many bytes of it, about 64 tokens, up to those that a model reads.
_TEXT_BYTES, _MOST_FOR_A_TEXT = 256, 8
#: Size of a token bucket: seconds of the share, or at least so many texts, so that a few evenly spaced ones fit.
_BURST_SECONDS = 0.2
_BURST_TEXTS = 2.0
#: Demand is an average over a second, or over so many texts of the quota where that takes longer.
_MEMORY_SECONDS = 1.0
_MEMORY_TEXTS = 30.0
#: Callers whose demand a heartbeat reports, and the number of most recent callers that they are chosen from.
_REPORTED_CALLERS = 256
_CONSIDERED_CALLERS = 1024
#: Demand below this part of the quota is not reported: the reserve covers it.
_NEGLIGIBLE = 0.01
#: Most callers with a bucket, and seconds without a call after which one may be evicted.
_MAX_CALLERS = 10_000
_IDLE_SECONDS = 60.0


@dataclass(slots=True)
class _Bucket:
    """One caller here. `rate`: its share, texts a second, as of heartbeat number `beat`; `tokens`: texts it may have
    now, below 0 while it is in debt; `work`: texts asked for lately, which decay with time constant `memory`
    (seconds)."""

    at: float
    rate: float
    tokens: float
    memory: float
    beat: int
    work: float = 0.0

    @property
    def size(self) -> float:
        return _size(self.rate)

    def demand(self, now: float) -> float:
        """Texts a second."""
        return self.work * math.exp((self.at - now) / self.memory) / self.memory

    def is_paid_back(self, now: float) -> bool:
        return self.tokens + (now - self.at) * self.rate >= self.size


class Quotas:
    """Times are monotonic seconds, given by the caller. Not thread-safe."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._local = snapshot.local
        self._policy = snapshot.policy
        self._beat = 0
        self._reported: deque[Mapping[str, float]] = deque([{}] * _REPORT_BEATS, _REPORT_BEATS)
        self._others: dict[str, Replica] = {}
        self._last_seen: dict[str, int] = {}
        # In the order of their last calls, the most recent last.
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        """Callers with a bucket."""
        return len(self._buckets)

    def update(self, snapshot: Snapshot) -> None:
        """Recompute the shares after a heartbeat that reached Redis. They stay until the next one."""
        self._beat += 1
        self._policy = snapshot.policy
        own: Mapping[str, float] = {}
        for it in snapshot.replicas:
            if it.id == self._local:
                own = it.demand
            else:
                self._others[it.id], self._last_seen[it.id] = it, self._beat
        # As the other replicas see it.
        self._reported.append(own)
        for replica in [it for it, beat in self._last_seen.items() if beat <= self._beat - _GONE_BEATS]:
            del self._last_seen[replica], self._others[replica]

    def share(self, caller: str) -> float:
        """Texts a second that the caller may have here; infinite without a quota."""
        quota, _ = self._policy.quota_of(caller)
        return self._share(caller, quota) if quota else math.inf

    def admit(self, caller: str, texts: int, now: float) -> None:
        """Raises: Overloaded, with a retry hint, if that is more than the caller may have now."""
        quota, name = self._policy.quota_of(caller)
        if not quota:
            return
        bucket = self._bucket(caller, quota, now)
        bucket.work = min(bucket.work + texts, quota * bucket.memory)
        missing = min(texts, bucket.size) - bucket.tokens
        if missing > 0:
            why = f"the caller is over its quota of {quota:g} texts a second{self._policy.origin(name)}"
            raise Overloaded(why, missing / bucket.rate)
        bucket.tokens -= texts

    def over(self, caller: str, texts: int, now: float) -> bool:
        """Whether `admit` would refuse so many texts."""
        bucket, (quota, _) = self._buckets.get(caller), self._policy.quota_of(caller)
        if bucket is None or not quota:
            return False
        # `admit` refills it no faster after a heartbeat, but a smaller one is full sooner.
        size = bucket.size if bucket.beat == self._beat else min(bucket.size, _size(self._share(caller, quota)))
        return min(texts, size) > bucket.tokens + (now - bucket.at) * bucket.rate

    def demand(self, now: float) -> dict[str, float]:
        """Texts a second that callers with a quota ask of this replica; those nearest to their quotas if many."""
        # Evict callers that have been idle for a minute and have repaid their token debt.
        while self._buckets:
            longest = next(iter(self._buckets.values()))
            if now - longest.at < _IDLE_SECONDS or not longest.is_paid_back(now):
                break
            self._buckets.popitem(last=False)
        lately = islice(reversed(self._buckets.items()), _CONSIDERED_CALLERS)
        demands = [(caller, bucket.demand(now), self._policy.quota_of(caller)[0]) for caller, bucket in lately]
        reported = [it for it in demands if it[2] and it[1] > it[2] * _NEGLIGIBLE]
        nearest = heapq.nlargest(_REPORTED_CALLERS, reported, key=lambda it: it[1] / it[2])
        return {caller: demand for caller, demand, _ in nearest}

    def _bucket(self, caller: str, quota: float, now: float) -> _Bucket:
        """The caller's bucket, refilled until now."""
        bucket = self._buckets.get(caller)
        if bucket is None:
            if len(self._buckets) >= _MAX_CALLERS:
                self._buckets.popitem(last=False)
            share = self._share(caller, quota)
            bucket = self._buckets[caller] = _Bucket(now, share, _size(share), _memory(quota), self._beat)
            return bucket
        self._buckets.move_to_end(caller)
        elapsed, rate = now - bucket.at, bucket.rate
        bucket.work *= math.exp(-elapsed / bucket.memory)
        if bucket.beat != self._beat:
            bucket.rate, bucket.beat, bucket.memory = self._share(caller, quota), self._beat, _memory(quota)
            # The new share may have held for any part of that time.
            rate = min(rate, bucket.rate)
        bucket.tokens = min(bucket.size, bucket.tokens + elapsed * rate)
        bucket.at = now
        return bucket

    def _share(self, caller: str, quota: float) -> float:
        here = min([reported.get(caller, 0.0) for reported in self._reported])
        everywhere = here + sum([other.demand.get(caller, 0.0) for other in self._others.values()])
        reserve = max((quota - everywhere) / 2, quota / 50)
        return quota * (here + reserve / (len(self._others) + 1)) / (everywhere + reserve)


def texts_charged(texts: Sequence[str], pairs: Sequence[str] = ()) -> int:
    """The texts that these count as, by their estimated tokens. `pairs`: the second texts, if there are any."""
    return sum([_charged(text + pair) for text, pair in zip_longest(texts, pairs, fillvalue="")])


def bytes_charged(texts: Iterable[int], pairs: Iterable[int] = ()) -> int:
    """As `texts_charged`, by the sizes of the texts in bytes of UTF-8."""
    return sum([_of_size(text + pair) for text, pair in zip_longest(texts, pairs, fillvalue=0)])


def _charged(text: str) -> int:
    # A character has at most four bytes.
    if len(text) <= _TEXT_BYTES // 4:
        return 1
    return _of_size(len(text.encode("utf-8", "surrogatepass")))


def _of_size(size: int) -> int:
    return min(_MOST_FOR_A_TEXT, max(1, -(-size // _TEXT_BYTES)))


def _size(share: float) -> float:
    """Tokens that a bucket holds."""
    return max(_BURST_TEXTS, share * _BURST_SECONDS)


def _memory(quota: float) -> float:
    """Seconds over which demand is averaged: longer for slow callers, so that few texts do not move the shares."""
    return max(_MEMORY_SECONDS, _MEMORY_TEXTS / quota)
