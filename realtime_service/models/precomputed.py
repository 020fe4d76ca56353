"""Looks up last night's published scores in Redis instead of computing.

A Bloom filter published with the epoch rules out most texts locally; only a match costs a round trip, and only if the
request has slack for it. The answer is never that of another release: keys contain the release, and its pointer names
the epoch.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import redis
import redis.asyncio
from rbloom import Bloom

from protos.scoring.v1.storage_pb2 import PublishedScore
from shared_model import tracing
from shared_model.clock import Clock
from shared_model.published.publish import key_position
from shared_model.redis_store import keys

REFRESH_SECONDS = 0.5
#: Least seconds until the deadline for a look-up.
MIN_SLACK = 0.010
#: Circuit breaker: after this many failed look-ups in a row, Redis is not asked for so many seconds.
_BREAKER_FAILURES = 3
_BREAKER_SECONDS = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Epoch:
    name: str
    precision: str
    filter: Bloom
    id_blocks: int


class PrecomputedScores:
    """Published scores of one release. `find` never raises and never waits longer than the client's timeout."""

    def __init__(self, client: "redis.asyncio.Redis", release: str, clock: Clock) -> None:
        self._redis = client
        self._release = release
        self._clock = clock
        self._epoch: _Epoch | None = None
        self._failures = 0
        self._retry_at = 0.0

    @property
    def epoch(self) -> str:
        """Name of the current epoch; empty without one."""
        return self._epoch.name if self._epoch else ""

    @property
    def release(self) -> str:
        return self._release

    @property
    def precision(self) -> str:
        """Precision of the epoch's scores; empty without an epoch."""
        return self._epoch.precision if self._epoch else ""

    @property
    def id_blocks(self) -> int:
        """Blocks of the epoch's index by message id; 0 without one."""
        return self._epoch.id_blocks if self._epoch else 0

    def may_have(self, text_key: bytes) -> bool:
        """Whether the epoch may have a text's score: its filter is wrong about one of a thousand that it has not."""
        return self._epoch is not None and text_key in self._epoch.filter

    async def find(self, text_keys: Sequence[bytes], slack: float) -> list[PublishedScore] | None:
        """The published score of every key, or None if one is missing. `slack`: seconds until the answer is due."""
        epoch = self._epoch
        if epoch is None or slack < MIN_SLACK or self._clock.monotonic() < self._retry_at:
            return None
        if not all(key in epoch.filter for key in text_keys):
            return None
        try:
            with tracing.redis_call("HMGET"):
                found = await self._redis.hmget(keys.epoch_scores(self._release, epoch.name), list(text_keys))
        except redis.exceptions.MaxConnectionsError:
            # A burst of look-ups uses all connections, which says nothing about Redis.
            return None
        except (redis.RedisError, OSError):
            self._failures += 1
            if self._failures >= _BREAKER_FAILURES:
                self._retry_at = self._clock.monotonic() + _BREAKER_SECONDS
                self._failures = 0
            return None
        self._failures = 0
        if any(value is None for value in found):
            return None
        return [PublishedScore.FromString(value) for value in found]

    async def refresh(self, client: "redis.asyncio.Redis") -> None:
        """Read the epoch pointer once, with a client whose timeout allows for a filter of megabytes."""
        try:
            pointed = await client.hget(keys.epoch_pointer(self._release), "epoch")
            name = pointed.decode() if pointed else ""
            if name != self.epoch:
                # The former epoch answers no more, even if the new one has expired.
                self._epoch = await self._load(client, name) if name else None
        except (redis.RedisError, OSError) as error:
            log.debug("the epoch pointer could not be read: %s", error)

    async def _load(self, client: "redis.asyncio.Redis", name: str) -> _Epoch | None:
        """None if the epoch has expired."""
        filter_bytes = await client.get(keys.epoch_filter(self._release, name))
        facts = await client.hgetall(keys.epoch_facts(self._release, name))
        if not (filter_bytes and facts):
            return None
        log.info("%s: epoch %s answers: %s texts", self._release, name, facts[b"count"].decode())
        bloom, id_blocks = Bloom.load_bytes(filter_bytes, key_position), int(facts.get(b"id_blocks", 0))
        return _Epoch(name, facts[b"precision"].decode(), bloom, id_blocks)


async def run(followed: Callable[[], Iterable[PrecomputedScores]], client: "redis.asyncio.Redis") -> None:
    """Follow the epoch pointers of the loaded releases until cancelled."""
    while True:
        for scores in followed():
            await scores.refresh(client)
        await asyncio.sleep(REFRESH_SECONDS)
