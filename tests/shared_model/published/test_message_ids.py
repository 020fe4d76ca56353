"""The index of an epoch by message id: each id finds its text, no other any, within the memory that is counted."""

from collections.abc import Iterator

import pytest
import redis

from protos.scoring.v1.storage_pb2 import PublishedScore
from shared_model.errors import JobError
from shared_model.published import epochs
from shared_model.published import publish as store
from shared_model.published.epochs import KEEP_SECONDS, keys_of
from shared_model.published.message_ids import (
    ENTRIES_OF_BLOCK,
    ENTRY_BYTES,
    FIND,
    STORED_BYTES,
    blocks_of,
    place,
    question,
)
from shared_model.published.publish import fitting, publish
from shared_model.redis_store import keys
from tests.shared_model.published.test_publish import RELEASE, epoch, key, scores


class Messages:
    """`copies` messages of each text; those of text 3 are "3/0", "3/1"."""

    def __init__(self, copies: int = 1) -> None:
        self._copies = copies

    def times(self, rank: int) -> int:
        return self._copies

    def entries(self, ranks: int) -> Iterator[tuple[str, bytes]]:
        return ((f"{rank}/{copy}", key(rank)) for rank in range(ranks) for copy in range(self._copies))


def found(client: "redis.Redis", name: str, ids: list[str]) -> list[PublishedScore | None]:
    blocks = int(client.hget(keys.epoch_facts(RELEASE, name), "id_blocks") or 0)
    return asked(client, keys.epoch_scores(RELEASE, name), keys.epoch_ids(RELEASE, name), ids, blocks)


def asked(client: "redis.Redis", held: str, index: str, ids: list[str], blocks: int) -> list[PublishedScore | None]:
    values = client.register_script(FIND)(args=question(held, index, ids, blocks))
    return [None if value is None else PublishedScore.FromString(value) for value in values]


def test_every_id_finds_its_text_and_no_other_finds_any(redis_client: "redis.Redis") -> None:
    written = {key(rank): PublishedScore(tokens=rank) for rank in range(3_000)}
    publish(redis_client, epoch(), written.items(), ids=Messages(copies=2))
    ids = [f"{rank}/{copy}" for rank in range(3_000) for copy in range(2)]
    assert found(redis_client, epoch().name, ids) == [score for score in written.values() for _ in range(2)]
    assert found(redis_client, epoch().name, [f"{rank}/2" for rank in range(3_000)]) == [None] * 3_000
    assert epochs.whole(redis_client, RELEASE, epoch().name) == 3_000


def test_a_mark_across_entries_is_that_of_none(redis_client: "redis.Redis") -> None:
    (field, mark), score = place("a", 1), PublishedScore(tokens=7)
    elsewhere = mark.rjust(ENTRY_BYTES - 4, b"\0").ljust(ENTRY_BYTES, b"\0")
    redis_client.hset("scores", key(1), score.SerializeToString())
    for block, expected in ((elsewhere, None), (elsewhere + mark + key(1), score), (elsewhere + mark + key(2), None)):
        redis_client.hset("index", field, block)
        assert asked(redis_client, "scores", "index", ["a"], 1) == [expected]


def test_blocks_are_about_as_large_as_they_are_to_be() -> None:
    made = dict(blocks_of(Messages().entries(1_000 * ENTRIES_OF_BLOCK), 1_000))
    assert len(made) == 1_000
    assert max(map(len, made.values())) < 2 * ENTRIES_OF_BLOCK * ENTRY_BYTES


def test_the_memory_of_ids_is_counted_and_enough(redis_client: "redis.Redis") -> None:
    publish(redis_client, epoch(), scores(20_000).items(), ids=Messages(copies=3))
    used = redis_client.memory_usage(keys.epoch_ids(RELEASE, epoch().name), samples=0)
    assert used <= 60_000 * STORED_BYTES
    room = 300_000
    alone, shared = (sum(1 for _ in fitting(scores(5_000).items(), room, ids)) for ids in (Messages(0), Messages(4)))
    assert 0 < shared < 0.7 * alone
    published = publish(redis_client, epoch(token=2), scores(5_000).items(), max_bytes=room, ids=Messages(4))
    assert (published.keys, published.bytes <= room) == (shared, True)


def test_an_index_goes_with_its_epoch(redis_client: "redis.Redis") -> None:
    for token in range(1, 5):
        publish(redis_client, epoch(token=token), scores(10).items(), ids=Messages())
    held = {name.decode().rpartition(":")[2] for name in redis_client.keys(keys.epoch_ids(RELEASE, "*"))}
    assert held == {"2026-01-14.2", "2026-01-14.3", "2026-01-14.4"}
    ttls = [redis_client.ttl(name) for name in keys_of(RELEASE, "2026-01-14.4")]
    assert all(KEEP_SECONDS - 60 < ttl <= KEEP_SECONDS for ttl in ttls)
    # An epoch that has lost a part of its index is not complete: a rollback passes it over.
    redis_client.unlink(keys.epoch_ids(RELEASE, "2026-01-14.3"))
    assert epochs.roll_back(redis_client, RELEASE, "2026-01-14", 4).now == "2026-01-14.2"
    assert not redis_client.exists(keys.epoch_ids(RELEASE, "2026-01-14.4"))


def test_an_index_that_redis_holds_otherwise_is_not_published(
    redis_client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(client: "redis.Redis", table: str, count: int, checksum: int) -> None:
        if ":ids:" in table:
            client.hset(table, client.hkeys(table)[0], b"other")
        verify(client, table, count, checksum)

    verify = store._verify
    monkeypatch.setattr(store, "_verify", damaged)
    with pytest.raises(JobError, match=r":ids:.*not published"):
        publish(redis_client, epoch(), scores(10).items(), ids=Messages())
    assert not redis_client.exists(keys.epoch_pointer(RELEASE))


def test_without_ids_an_epoch_has_no_index(redis_client: "redis.Redis") -> None:
    publish(redis_client, epoch(), [(key(1), PublishedScore(labels=[1], scores=[1.0]))])
    assert not redis_client.exists(keys.epoch_ids(RELEASE, epoch().name))
    assert not redis_client.hexists(keys.epoch_facts(RELEASE, epoch().name), "id_blocks")
