"""An epoch is written whole, checked, and only then pointed to; the pointer moves forward only."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rbloom import Bloom

from protos.scoring.v1.storage_pb2 import PublishedScore
from shared_model.errors import JobError, StoreUnavailable
from shared_model.published import publish as store
from shared_model.published.epochs import KEEP_SECONDS, Epoch, Outcome
from shared_model.published.publish import publish
from shared_model.redis_store import keys
from tests.properties import examples

RELEASE = "small-0123456789ab"


def key(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def scores(count: int, label: int = 1) -> dict[bytes, PublishedScore]:
    return {key(n): PublishedScore(labels=[label, n % 77], scores=[0.9, 0.1], tokens=5) for n in range(count)}


def epoch(ds: str = "2026-01-14", token: int = 1) -> Epoch:
    return Epoch(RELEASE, "bf16", ds, token)


def pointed(client: "redis.Redis") -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = client.hgetall(keys.epoch_pointer(RELEASE))
    return fields


def read(client: "redis.Redis", name: str) -> dict[bytes, PublishedScore]:
    table: dict[bytes, bytes] = client.hgetall(keys.epoch_scores(RELEASE, name))
    return {k: PublishedScore.FromString(value) for k, value in table.items()}


def test_what_is_published_is_read_back(redis_client: "redis.Redis") -> None:
    written = scores(12_345)
    published = publish(redis_client, epoch(), written.items())
    assert (published.epoch, published.keys, published.outcome) == ("2026-01-14.1", 12_345, Outcome.MOVED)
    assert pointed(redis_client)[b"epoch"] == b"2026-01-14.1"
    assert read(redis_client, "2026-01-14.1") == written
    facts = redis_client.hgetall(keys.epoch_facts(RELEASE, "2026-01-14.1"))
    assert (facts[b"precision"], facts[b"count"]) == (b"bf16", b"12345")


def test_a_key_that_comes_twice_counts_once(redis_client: "redis.Redis") -> None:
    twice = [*scores(10).items(), *scores(10).items()]
    assert publish(redis_client, epoch(), twice).keys == 10


def test_an_empty_partition_is_an_epoch(redis_client: "redis.Redis") -> None:
    assert publish(redis_client, epoch(), []).outcome is Outcome.MOVED


def test_what_is_published_does_not_stay_for_ever(redis_client: "redis.Redis") -> None:
    publish(redis_client, epoch(), scores(3).items())
    name = epoch().name
    for of_epoch in (keys.epoch_scores, keys.epoch_filter, keys.epoch_facts):
        assert 0 < redis_client.ttl(of_epoch(RELEASE, name)) <= KEEP_SECONDS


def test_redis_holds_three_epochs_of_a_release_and_a_fourth_while_it_is_written(redis_client: "redis.Redis") -> None:
    def held() -> int:
        return len(redis_client.keys(keys.epoch_scores(RELEASE, "*")))

    def watched(count: int) -> Iterator[tuple[bytes, PublishedScore]]:
        """Beyond the first command's, so that some of it is there."""
        yield from scores(count).items()
        during.append(held())

    during, after = list[int](), list[int]()
    for token in range(1, 7):
        publish(redis_client, epoch(token=token), watched(1_500))
        after.append(held())
    assert (during, after) == ([1, 2, 3, 4, 4, 4], [1, 2, 3, 3, 3, 3])


@pytest.mark.parametrize("newer", [epoch("2026-01-14", 2), epoch("2026-01-15", 1)])
def test_the_pointer_moves_forward_and_remembers(redis_client: "redis.Redis", newer: Epoch) -> None:
    publish(redis_client, epoch(), scores(3).items())
    assert publish(redis_client, newer, scores(4).items()).outcome is Outcome.MOVED
    assert pointed(redis_client)[b"epoch"] == newer.name.encode()
    assert pointed(redis_client)[b"previous"] == epoch().name.encode()
    assert len(read(redis_client, epoch().name)) == 3  # kept for rollback


@pytest.mark.parametrize("older", [epoch("2026-01-15", 9), epoch("2026-01-14", 11), epoch("2025-12-31", 99)])
def test_the_pointer_never_moves_back(redis_client: "redis.Redis", older: Epoch) -> None:
    newest = epoch("2026-01-15", 10)
    publish(redis_client, newest, scores(3).items())
    assert publish(redis_client, older, scores(5).items()).outcome is Outcome.OLDER
    assert pointed(redis_client)[b"epoch"] == newest.name.encode()
    assert read(redis_client, older.name) == {}  # and leaves nothing behind
    assert not redis_client.exists(keys.epoch_filter(RELEASE, older.name), keys.epoch_facts(RELEASE, older.name))


def test_tokens_are_numbers_not_words(redis_client: "redis.Redis") -> None:
    publish(redis_client, epoch(token=9), scores(3).items())
    assert publish(redis_client, epoch(token=10), scores(3).items()).outcome is Outcome.MOVED


def test_publishing_again_changes_nothing_that_is_read(redis_client: "redis.Redis") -> None:
    first = publish(redis_client, epoch(), scores(300).items())
    again = publish(redis_client, epoch(), scores(300).items())
    assert (again.keys, read(redis_client, first.epoch)) == (300, scores(300))
    assert pointed(redis_client)[b"epoch"] == first.epoch.encode()


def test_releases_do_not_touch_each_other(redis_client: "redis.Redis") -> None:
    other = "small-ba9876543210"
    publish(redis_client, epoch(), scores(3).items())
    publish(redis_client, Epoch(other, "bf16", "2026-01-13", 1), scores(4).items())
    assert pointed(redis_client)[b"epoch"] == b"2026-01-14.1"
    assert redis_client.hget(keys.epoch_pointer(other), "epoch") == b"2026-01-13.1"


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(present=st.sets(st.binary(min_size=16, max_size=16), max_size=300))
def test_the_filter_never_denies_a_key_that_is_there(redis_client: "redis.Redis", present: set[bytes]) -> None:
    name = publish(redis_client, epoch(), ((k, PublishedScore(labels=[1])) for k in present)).epoch
    bloom = Bloom.load_bytes(redis_client.get(keys.epoch_filter(RELEASE, name)), store.key_position)
    assert all(k in bloom for k in present)
    redis_client.flushall()


def test_the_filter_keeps_most_misses_off_the_network(redis_client: "redis.Redis") -> None:
    name = publish(redis_client, epoch(), scores(5_000).items()).epoch
    bloom = Bloom.load_bytes(redis_client.get(keys.epoch_filter(RELEASE, name)), store.key_position)
    let_through = sum(key(n) in bloom for n in range(100_000, 120_000))
    assert let_through <= 20_000 * store.FILTER_ERROR * 3


class Corrupting(redis.Redis):  # type: ignore[misc]
    """A real Redis behind a client that damages the values it writes."""

    def hset(self, name: Any, *args: Any, mapping: Mapping[Any, Any] | None = None, **kwargs: Any) -> Any:
        if mapping and b"scores" in str(name).encode() and "epoch" in str(name):
            mapping = self.damage(dict(mapping))
        return super().hset(name, *args, mapping=mapping, **kwargs)

    def damage(self, mapping: dict[Any, Any]) -> dict[Any, Any]:
        raise NotImplementedError


class LosesOne(Corrupting):
    def damage(self, mapping: dict[Any, Any]) -> dict[Any, Any]:
        mapping.popitem()
        return mapping


class ChangesOne(Corrupting):
    def damage(self, mapping: dict[Any, Any]) -> dict[Any, Any]:
        mapping[next(iter(mapping))] = b"other"
        return mapping


class SwapsTwo(Corrupting):
    def damage(self, mapping: dict[Any, Any]) -> dict[Any, Any]:
        one, other = list(mapping)[:2]
        mapping[one], mapping[other] = mapping[other], mapping[one]
        return mapping


@pytest.mark.parametrize("fault", [LosesOne, ChangesOne, SwapsTwo])
def test_a_write_that_went_wrong_is_never_pointed_to(
    redis_client: "redis.Redis", redis_url: str, fault: type[Corrupting]
) -> None:
    publish(redis_client, epoch(), scores(3).items())
    with fault.from_url(redis_url) as client, pytest.raises(JobError, match="not published"):
        publish(client, epoch(token=2), scores(300).items())
    assert pointed(redis_client)[b"epoch"] == epoch().name.encode()


def test_without_redis_it_says_so() -> None:
    with (
        redis.Redis.from_url("redis://127.0.0.1:1", socket_timeout=1.0) as client,
        pytest.raises(StoreUnavailable, match=r"publishing 2026-01-14\.1"),
    ):
        publish(client, epoch(), scores(3).items())
