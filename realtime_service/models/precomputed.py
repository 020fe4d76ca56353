"""Answers from last night's published scores, without touching a device.

A filter shipped with the epoch says "no" locally; only its "yes" costs a round trip to Redis, and only with slack to
spare. Never an answer of another release: keys hold the release, and the epoch is the one its pointer names.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import redis
import redis.asyncio
from rbloom import Bloom

from protos.scoring.v1.storage_pb2 import PublishedScore
from shared_model.clock import Clock
from shared_model.published.publish import key_position
from shared_model.redis_store import keys

REFRESH_SECONDS = 0.5
#: A look-up is worth its wait only with this much time left, in seconds.
MIN_SLACK = 0.010
#: After this many look-ups in a row without an answer, Redis is left alone for a while.
_BREAKER_FAILURES = 3
_BREAKER_SECONDS = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Epoch:
    name: str
    precision: str
    filter: Bloom


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
        """Name of the epoch that answers; empty while there is none."""
        return self._epoch.name if self._epoch else ""

    @property
    def precision(self) -> str:
        """Precision that computed the epoch's scores; empty while there is none."""
        return self._epoch.precision if self._epoch else ""

    async def find(self, wanted: Sequence[bytes], slack: float) -> list[PublishedScore] | None:
        """The published score of every key, or None if one is missing. `slack`: seconds until the answer is due."""
        epoch = self._epoch
        if epoch is None or slack < MIN_SLACK or self._clock.monotonic() < self._retry_at:
            return None
        if not all(key in epoch.filter for key in wanted):
            return None
        try:
            found = await self._redis.hmget(keys.epoch_scores(self._release, epoch.name), list(wanted))
        except (redis.RedisError, OSError):
            self._note_failure()
            return None
        self._failures = 0
        if any(value is None for value in found):
            return None
        return [PublishedScore.FromString(value) for value in found]

    async def refresh(self, client: "redis.asyncio.Redis") -> None:
        """Look at the epoch pointer once, on a client with room for a filter's megabytes."""
        try:
            await self._refresh(client)
        except (redis.RedisError, OSError) as error:
            log.debug("the epoch could not be looked at: %s", error)

    async def _refresh(self, client: "redis.asyncio.Redis") -> None:
        pointed = await client.hget(keys.epoch_pointer(self._release), "epoch")
        name = pointed.decode() if pointed else ""
        if name == self.epoch:
            return
        # What is no longer pointed to answers nothing more, even where what is pointed to has expired.
        self._epoch = await self._load(client, name) if name else None

    async def _load(self, client: "redis.asyncio.Redis", name: str) -> _Epoch | None:
        """None where the epoch has expired."""
        filter_bytes = await client.get(keys.epoch_filter(self._release, name))
        facts = await client.hgetall(keys.epoch_facts(self._release, name))
        if not (filter_bytes and facts):
            return None
        log.info("%s: epoch %s answers: %s texts", self._release, name, facts[b"count"].decode())
        return _Epoch(name, facts[b"precision"].decode(), Bloom.load_bytes(filter_bytes, key_position))

    def _note_failure(self) -> None:
        self._failures += 1
        if self._failures >= _BREAKER_FAILURES:
            self._retry_at = self._clock.monotonic() + _BREAKER_SECONDS
            self._failures = 0


async def run(followed: Callable[[], Iterable[PrecomputedScores]], client: "redis.asyncio.Redis") -> None:
    """Follow the epoch pointers of the releases that are loaded, until cancelled."""
    while True:
        for scores in followed():
            await scores.refresh(client)
        await asyncio.sleep(REFRESH_SECONDS)
