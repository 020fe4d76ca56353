"""Write an epoch, prove it, point to it. Called once a night by the batch job; blocking."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import redis
from rbloom import Bloom

from protos.scoring.v1.storage_pb2 import PublishedScore
from shared_model import keys
from shared_model.errors import JobError, StoreUnavailable

#: Share of texts not in the epoch that the filter lets through to Redis.
FILTER_ERROR = 0.001
#: Seconds an epoch lives: a night missed must not empty the path, a week must.
KEEP_SECONDS = 3 * 24 * 3600

_ADVANCE = (Path(__file__).parent / "lua" / "advance.lua").read_text()
_CHUNK = 5_000


@dataclass(frozen=True)
class Epoch:
    """`name` is unique to (ds, token)."""

    release: str
    precision: str
    ds: str
    token: int

    @property
    def name(self) -> str:
        return f"{self.ds}.{self.token}"


@dataclass(frozen=True)
class Published:
    """`advanced`: the pointer was moved to this epoch. `live`: the pointer stands at it now; when it does not, a newer
    epoch was pointed to already, and this one was written and dropped."""

    epoch: str
    keys: int
    advanced: bool
    live: bool


def key_position(key: bytes) -> int:
    """A key as the filter hashes it: keys are 128-bit hashes already."""
    return int.from_bytes(key, "little", signed=True)


def live_keys(client: "redis.Redis", epoch: Epoch) -> int | None:
    """Keys of an epoch that is pointed to and whole; None when it is not."""
    try:
        if not _is_live(client, epoch):
            return None
        found = int(client.hlen(keys.epoch_scores(epoch.release, epoch.name)))
        count = client.hget(keys.epoch_facts(epoch.release, epoch.name), "count")
        has_filter = client.exists(keys.epoch_filter(epoch.release, epoch.name))
    except redis.RedisError as error:
        raise StoreUnavailable(f"looking at {epoch.name}: {error}") from error
    return found if has_filter and count and int(count) == found else None


def publish(client: "redis.Redis", epoch: Epoch, scores: Iterable[tuple[bytes, PublishedScore]]) -> Published:
    """Publish one epoch. A key that comes twice counts once.

    Raises: StoreUnavailable when Redis fails; JobError when what Redis holds is not what was written.
    """
    try:
        return _publish(client, epoch, dict(scores))
    except redis.RedisError as error:
        raise StoreUnavailable(f"publishing {epoch.name}: {error}") from error


def _publish(client: "redis.Redis", epoch: Epoch, scores: dict[bytes, PublishedScore]) -> Published:
    table, facts = keys.epoch_scores(epoch.release, epoch.name), keys.epoch_facts(epoch.release, epoch.name)
    bloom_key = keys.epoch_filter(epoch.release, epoch.name)
    if not _is_live(client, epoch):
        # What an earlier try left behind. The live epoch is written over instead, value by value: it answers meanwhile.
        client.delete(table, facts, bloom_key)
    bloom = Bloom(max(1, len(scores)), FILTER_ERROR, key_position)
    expected = 0
    for chunk in _chunks(scores.items()):
        values = {key: score.SerializeToString() for key, score in chunk}
        client.hset(table, mapping=values)
        bloom.update(values)
        expected ^= _checksum(values.items())
    client.set(bloom_key, bloom.save_bytes())
    client.hset(facts, mapping={"precision": epoch.precision, "count": len(scores), "checksum": f"{expected:016x}"})
    _verify(client, table, len(scores), expected)
    for key in (table, facts, bloom_key):
        client.expire(key, KEEP_SECONDS)
    pointer = keys.epoch_pointer(epoch.release)
    moved = int(client.register_script(_ADVANCE)(keys=[pointer], args=[epoch.name, epoch.ds, epoch.token]))
    if moved < 0:
        client.unlink(table, facts, bloom_key)
    return Published(epoch.name, len(scores), advanced=moved > 0, live=moved >= 0)


def _is_live(client: "redis.Redis", epoch: Epoch) -> bool:
    return bool(client.hget(keys.epoch_pointer(epoch.release), "epoch") == epoch.name.encode())


def _verify(client: "redis.Redis", table: str, count: int, checksum: int) -> None:
    stored = int(client.hlen(table))
    found = 0
    for chunk in _chunks(client.hscan_iter(table, count=_CHUNK)):
        found ^= _checksum(chunk)
    if (stored, found) != (count, checksum):
        raise JobError(f"{table}: Redis holds {stored} keys of {count}, or other values; not published")


def _checksum(items: Iterable[tuple[bytes, bytes]]) -> int:
    """XOR of 64-bit digests: the same for any order."""
    total = 0
    for key, value in items:
        total ^= int.from_bytes(hashlib.blake2b(key + value, digest_size=8).digest(), "little")
    return total


def _chunks(items: Iterable[tuple[bytes, object]]) -> Iterator[list]:  # type: ignore[type-arg]
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, _CHUNK)):
        yield chunk
