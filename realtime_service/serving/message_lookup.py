"""Last night's scores of messages by their ids, from the published epoch of a model's active release."""

from collections.abc import Sequence
from dataclasses import dataclass

import redis
import redis.asyncio

from protos.scoring.v1.storage_pb2 import PublishedScore
from realtime_service.errors import NotFound, PermissionDenied, ReplicaUnavailable
from realtime_service.identity import Identity
from realtime_service.models.registry import Model, Models
from realtime_service.serving import release_choice
from realtime_service.telemetry.metrics import Metrics
from shared_model import tracing
from shared_model.published import message_ids
from shared_model.redis_store import keys

#: Ids of one call.
MAX_IDS = 64


@dataclass(frozen=True, slots=True)
class Found:
    """`scores`: of each id, None where the epoch has no message of it. `epoch`: its name, DAY.TOKEN."""

    model: Model
    epoch: str
    precision: str
    scores: Sequence[PublishedScore | None]


class MessageLookup:
    def __init__(self, models: Models, client: "redis.asyncio.Redis", metrics: Metrics) -> None:
        self._models = models
        self._metrics = metrics
        self._find = client.register_script(message_ids.FIND)

    async def find(self, caller: Identity, name: str, ids: Sequence[str]) -> Found:
        """`name`: of the model, "" for the default one.

        Raises: PermissionDenied; UnknownRelease; NotFound without an epoch; ModelLoading; ReplicaUnavailable.
        """
        if not caller.sees_precomputed:
            raise PermissionDenied("the token does not permit to see which messages were scored before")
        model = self._model(caller, name)
        published = model.precomputed
        if published is None or not published.epoch:
            raise NotFound(f"ids: no night's scores of release {model.release} are published")
        epoch, precision, blocks = published.epoch, published.precision, published.id_blocks
        if not blocks:
            raise NotFound(f"ids: epoch {epoch} has no index by message id; score its day again")
        try:
            scores = await self._read(model.release, epoch, blocks, ids)
        except (redis.RedisError, OSError) as error:
            raise ReplicaUnavailable("published scores cannot be read now; try again") from error
        self._metrics.looked_up(len(ids), sum(score is not None for score in scores))
        return Found(model, epoch, precision, scores)

    def _model(self, caller: Identity, name: str) -> Model:
        serving = self._models.serving
        chosen = serving.choose("", None, name)
        release_choice.check_permitted(caller, chosen)
        if (model := serving.models.get(chosen)) is None:
            raise release_choice.unloaded(self._models, name)
        return model

    async def _read(self, release: str, epoch: str, blocks: int, ids: Sequence[str]) -> list[PublishedScore | None]:
        names = keys.epoch_scores(release, epoch), keys.epoch_ids(release, epoch)
        with tracing.redis_call("EVALSHA", "find_messages"):
            values = await self._find(args=message_ids.question(*names, ids, blocks))
        return [None if value is None else PublishedScore.FromString(value) for value in values]
