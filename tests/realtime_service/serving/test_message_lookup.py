"""Look-ups by message id: of the epoch that answers, for those who may see it, and clear where no epoch is."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio

from protos.scoring.v1.storage_pb2 import PublishedScore
from realtime_service.errors import NotFound, PermissionDenied, ReplicaUnavailable
from realtime_service.identity import Identity
from realtime_service.models.precomputed import PrecomputedScores
from realtime_service.models.registry import Models, Serving
from realtime_service.serving.message_lookup import MessageLookup
from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import SystemClock
from shared_model.published.epochs import Epoch
from shared_model.published.publish import publish
from tests.realtime_service.night import Messages

RELEASE = "tiny-0123456789ab"
SEEING = Identity("token:a", "token:a", sees_precomputed=True)
KEYS = {f"m-{number}": number.to_bytes(16, "big") for number in range(1_000)}


class Replica:
    """With one model, whose published scores lie in a Redis."""

    def __init__(self, client: "redis.asyncio.Redis") -> None:
        self.published = PrecomputedScores(client, RELEASE, SystemClock())
        model: Any = SimpleNamespace(release=RELEASE, precomputed=self.published)
        self.metrics = Metrics([])
        self.lookup = MessageLookup(Models(Serving({RELEASE: model}, RELEASE)), client, self.metrics)

    def counted(self, outcome: str) -> float | None:
        return self.metrics.registry.get_sample_value("tandem_lookup_ids_total", {"outcome": outcome})


@pytest.fixture
async def client(redis_url: str) -> Any:
    async with redis.asyncio.Redis.from_url(redis_url) as own:
        yield own


@pytest.fixture
def replica(client: "redis.asyncio.Redis") -> Replica:
    return Replica(client)


def night(client: "redis.Redis", ds: str, label: int, **ids: Messages) -> None:
    scores = [(key, PublishedScore(labels=[label], scores=[0.5])) for key in KEYS.values()]
    publish(client, Epoch(RELEASE, "bf16", ds, 1), scores, **ids)


async def test_the_epoch_that_answers_is_looked_at(
    replica: Replica, client: "redis.asyncio.Redis", redis_client: "redis.Redis"
) -> None:
    for label, ds in enumerate(("2026-01-14", "2026-01-15")):
        night(redis_client, ds, label, ids=Messages(KEYS))
        await replica.published.refresh(client)
        found = await replica.lookup.find(SEEING, "", ["m-999", "absent", "m-0"])
        labels = [None if score is None else list(score.labels) for score in found.scores]
        assert (found.epoch, found.precision, labels) == (f"{ds}.1", "bf16", [[label], None, [label]])
        assert (replica.counted("found"), replica.counted("absent")) == (2 * label + 2, label + 1)


async def test_without_an_epoch_and_without_an_index_it_says_so(
    replica: Replica, client: "redis.asyncio.Redis", redis_client: "redis.Redis"
) -> None:
    with pytest.raises(NotFound, match=f"ids: no night's scores of release {RELEASE} are published"):
        await replica.lookup.find(SEEING, "", ["m-0"])
    night(redis_client, "2026-01-14", 1)
    await replica.published.refresh(client)
    with pytest.raises(NotFound, match=r"ids: epoch 2026-01-14.1 has no index by message id"):
        await replica.lookup.find(SEEING, "", ["m-0"])


async def test_a_caller_without_the_permission_learns_nothing(replica: Replica) -> None:
    for caller in (
        dataclasses.replace(SEEING, sees_precomputed=False),
        dataclasses.replace(SEEING, models=frozenset()),
    ):
        with pytest.raises(PermissionDenied):
            await replica.lookup.find(caller, "", ["m-0"])


async def test_without_redis_another_replica_may_know(
    replica: Replica, client: "redis.asyncio.Redis", redis_client: "redis.Redis"
) -> None:
    night(redis_client, "2026-01-14", 1, ids=Messages(KEYS))
    await replica.published.refresh(client)
    replica.lookup._find.registered_client = redis.asyncio.Redis(port=1)
    with pytest.raises(ReplicaUnavailable, match="published scores cannot be read now"):
        await replica.lookup.find(SEEING, "", ["m-0"])
