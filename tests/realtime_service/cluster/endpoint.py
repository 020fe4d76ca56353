"""An endpoint without a model: it registers in Redis with some lanes, answers Score, and can be killed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from realtime_service.cluster import forwarded_context, heartbeat
from realtime_service.cluster.heartbeat import LaneLoad
from realtime_service.cluster.membership import Membership
from realtime_service.cluster.peer_trust import PeerTrust
from realtime_service.process import redis_connections
from realtime_service.routing.overrides import Policy
from realtime_service.routing.snapshot import Snapshot
from realtime_service.transport.listener import bind, make_listener
from realtime_service.transport.peer_stream_server import PeerStreams
from realtime_service.transport.streaming import OpenStreams
from shared_model.clock import SystemClock
from shared_model.trust.keyring import WITHOUT_KEYS, Keyring
from shared_model.types import ServingPath
from tests.realtime_service.cluster.stub import FORWARDED, Stub

_RELEASE = "tiny-000000000000"


class Endpoint(Stub):
    """Answers with the lane that the router chose. A lane that it does not serve ends the call."""

    def __init__(self, redis_url: str, *lanes: ServingPath, keys: Keyring = WITHOUT_KEYS) -> None:
        super().__init__()
        self._keys = keys
        self.lanes = lanes
        self._redis_url = redis_url

    async def start(self) -> None:
        self._server = make_listener(shared=False)
        self.address = bind(self._server, "127.0.0.1:0")
        self._redis = redis_connections.default_client(self._redis_url)
        initial = Snapshot(self.address, self.lanes)
        membership = Membership(self._redis, initial, self._describe, Policy(), self._keys)
        trust = PeerTrust(self._keys, self.address, lambda: membership.snapshot.cluster_token, SystemClock())
        self._server.add_generic_rpc_handlers((PeerStreams([self], FORWARDED, OpenStreams(), trust).handlers(), self))
        await self._server.start()
        await membership.run_once()
        self._beating = asyncio.create_task(membership.run())

    async def die(self) -> None:
        """End like a killed process: without deregistering, and with broken connections."""
        self._beating.cancel()
        await self._server.stop(grace=None)
        await self._redis.aclose()

    def _describe(self, lanes: Any) -> Any:
        replica = ReplicaDescription(id=self.address, address=self.address, releases=[_RELEASE])
        return heartbeat.state(replica, dict.fromkeys(lanes, LaneLoad(finish=0.002, real_time=0.002, per_text=0.001)))

    async def _play(self, raw: bytes, context: Any) -> bytes:
        path = ServingPath(str(self.asked[-1].metadata[forwarded_context.PATH]))
        assert path in self.lanes
        texts = scoring_pb2.ScoreRequest.FromString(raw).texts
        answer = scoring_pb2.ScoreResponse(
            path=scoring_pb2.Path.Value(path.upper()), release=_RELEASE, results=[scoring_pb2.Result()] * len(texts)
        )
        return answer.SerializeToString()


@contextlib.asynccontextmanager
async def serving(redis_url: str, *lanes: ServingPath, keys: Keyring = WITHOUT_KEYS) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(redis_url, *lanes, keys=keys)
    await endpoint.start()
    try:
        yield endpoint
    finally:
        await endpoint.die()
