"""A published night of a test."""

from collections.abc import Iterator, Mapping

import redis

from protos.scoring.v1.storage_pb2 import PublishedScore
from shared_model.published import publish as publishing
from shared_model.published.epochs import Epoch
from shared_model.redis_store.server import RedisServer


class Messages:
    """One message of each text."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = keys

    def times(self, rank: int) -> int:
        return 1

    def entries(self, ranks: int) -> Iterator[tuple[str, bytes]]:
        return iter(self._keys.items())


def publish(server: RedisServer, release: str, messages: Mapping[str, bytes], ds: str = "2026-01-14") -> None:
    """`messages`: encoding keys of their texts, by id. Each text's best labels are of numbers 2 and 1."""
    score = PublishedScore(labels=[2, 1], scores=[0.75, 0.25], tokens=3)
    items = [(key, score) for key in messages.values()]
    with redis.Redis.from_url(server.url) as client:
        publishing.publish(client, Epoch(release, "bf16", ds, 1), items, ids=Messages(messages))
