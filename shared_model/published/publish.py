"""Write an epoch, verify it, make it live. Called once a night by the batch job; blocking."""

import hashlib
import itertools
import sys
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import redis
from rbloom import Bloom

from protos.scoring.v1.storage_pb2 import PublishedScore
from shared_model.errors import JobError, StoreUnavailable
from shared_model.published import epochs
from shared_model.published.epochs import KEEP_SECONDS, STAGED_SECONDS, Epoch, Outcome
from shared_model.published.message_ids import ENTRIES_OF_BLOCK, STORED_BYTES, MessageIds, NoIds, blocks_of

NO_IDS = NoIds()
#: False-positive rate of the filter: share of absent texts that are looked up in Redis.
FILTER_ERROR = 0.001

#: Entries of one command: it blocks Redis for about a millisecond, and look-ups of the service time out after two.
_CHUNK = 1_000
#: The same for blocks of ids.
_BLOCKS = 100
#: Bytes of a key beside its value: entry, bucket (two while the table grows), name and its share of the filter.
_KEY_BYTES = 106
#: Factor by which the allocator may round a value's size up.
_VALUE_FACTOR = 1.25
#: Bytes of the facts and of the empty structures.
_EPOCH_BYTES = 4096


@dataclass(frozen=True)
class Published:
    """`keys`: number written, 0 if the epoch may not go live. `bytes`: memory as reported by Redis."""

    epoch: str
    outcome: Outcome
    keys: int
    bytes: int = 0


def key_position(key: bytes) -> int:
    """The filter's hash of a key, which is a 128-bit hash already."""
    return int.from_bytes(key, "little", signed=True)


def most_keys(max_bytes: float) -> int:
    """More keys than this do not fit, whatever their values."""
    return int(min(max_bytes, sys.maxsize) // _KEY_BYTES)


def publish(
    client: "redis.Redis",
    epoch: Epoch,
    scores: Iterable[tuple[bytes, PublishedScore]],
    max_bytes: float = float("inf"),
    keep_seconds: int = KEEP_SECONDS,
    insist: bool = False,
    ids: MessageIds = NO_IDS,
) -> Published:
    """Publish one epoch for `keep_seconds`. The first score of a key wins.

    `scores` are ordered by value: as many of the first are published as fit into `max_bytes` of Redis' memory, with the
    `ids` of their messages. `insist`: an operator wants this epoch live although another is newer.

    Raises: StoreUnavailable if Redis fails; JobError if Redis holds other data than was written.
    """
    try:
        outcome = epochs.look(client, epoch, insist)
        if not outcome.live:
            return Published(epoch.name, outcome, 0)
        # Under a staging name until it is complete: the live epoch is not touched meanwhile.
        staged = f"{epoch.name}.staged-{uuid.uuid4().hex[:8]}"
        try:
            return _publish(client, epoch, staged, fitting(scores, max_bytes, ids), keep_seconds, insist, ids)
        finally:
            client.unlink(*epochs.keys_of(epoch.release, staged))
    except redis.RedisError as error:
        raise StoreUnavailable(f"publishing {epoch.name}: {error}") from error


def fitting(
    scores: Iterable[tuple[bytes, PublishedScore]], max_bytes: float, ids: MessageIds = NO_IDS
) -> Iterator[tuple[bytes, bytes]]:
    """The first scores that fit into `max_bytes` of Redis' memory with their ids, each key once, serialised."""
    left, seen = max_bytes - _EPOCH_BYTES, set[bytes]()
    for key, score in scores:
        if key in seen:
            continue
        value = score.SerializeToString()
        left -= _KEY_BYTES + _VALUE_FACTOR * len(value) + STORED_BYTES * ids.times(len(seen))
        if left < 0:
            return
        seen.add(key)
        yield key, value


def _publish(
    client: "redis.Redis",
    epoch: Epoch,
    staged: str,
    items: Iterable[tuple[bytes, bytes]],
    keep_seconds: int,
    insist: bool,
    ids: MessageIds,
) -> Published:
    table, bloom_key, facts, ids_key = epochs.keys_of(epoch.release, staged)
    written: list[bytes] = []

    def noted() -> Iterator[tuple[bytes, bytes]]:
        for item in items:
            written.append(item[0])
            yield item

    checksum = _write(client, table, noted())
    id_blocks = max(1, sum(map(ids.times, range(len(written)))) // ENTRIES_OF_BLOCK)
    blocks = dict(blocks_of(ids.entries(len(written)), id_blocks))
    _write(client, ids_key, blocks.items(), _BLOCKS)
    bloom = Bloom(max(1, len(written)), FILTER_ERROR, key_position)
    bloom.update(written)
    client.set(bloom_key, bloom.save_bytes(), ex=STAGED_SECONDS)
    told = {"precision": epoch.precision, "count": len(written), "checksum": f"{checksum:016x}"}
    if blocks:
        told |= {"id_blocks": id_blocks, "id_fields": len(blocks)}
    client.hset(facts, mapping=told)
    used = sum(client.memory_usage(key, samples=1000) or 0 for key in (table, bloom_key, facts, ids_key))
    for key in (table, bloom_key, facts, ids_key):
        client.expire(key, keep_seconds)
    outcome = epochs.move(client, epoch, staged, insist)
    return Published(epoch.name, outcome, len(written), used) if outcome.live else Published(epoch.name, outcome, 0)


def _write(client: "redis.Redis", table: str, items: Iterable[tuple[bytes, bytes]], together: int = _CHUNK) -> int:
    """Write a hash and read it back. Returns its checksum. Raises: JobError."""
    count = checksum = 0
    for chunk in _chunks(items, together):
        client.hset(table, mapping=dict(chunk))
        client.expire(table, STAGED_SECONDS)
        count += len(chunk)
        checksum ^= _checksum(chunk)
    _verify(client, table, count, checksum)
    return checksum


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


def _chunks(items: Iterable[tuple[bytes, bytes]], together: int = _CHUNK) -> Iterator[list[tuple[bytes, bytes]]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, together)):
        yield chunk
