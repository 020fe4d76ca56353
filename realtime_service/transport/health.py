"""The standard gRPC health service of a replica, for the whole and for each lane.

Its handlers take raw bytes like all others: the servicer of grpcio-health-checking answers a message that cannot be
parsed with UNKNOWN and a traceback.
"""

import asyncio
from collections.abc import Sequence

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2

from realtime_service.errors import NotFound
from realtime_service.transport import compression, rpc_handlers
from realtime_service.transport.messages import parse
from realtime_service.transport.rpc_handlers import Context
from shared_model.types import ServingPath

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Readiness:
    """`services`: names that are SERVING while any lane takes calls; clients and load balancers avoid a replica that is
    not. Each lane has a name under the first of them, like `scoring.v1.ScoringService/latency`."""

    def __init__(self, services: Sequence[str], lanes: Sequence[ServingPath]) -> None:
        self._services = ("", *services)
        self._named = services[0]
        self._up: set[ServingPath] = set()
        self._any_up = asyncio.Event()
        # No lane is ready yet.
        self._statuses: dict[str, int] = dict.fromkeys((*self._services, *map(self._name, lanes)), _NOT_SERVING)
        self._closed = False
        # Set, and replaced, at each change.
        self._change = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether any lane takes calls."""
        return bool(self._up)

    def takes(self, lane: str) -> bool:
        """Whether a lane takes calls; "": any lane."""
        return lane in self._up if lane else self.ready

    async def until_ready(self) -> None:
        """Wait until a lane takes calls."""
        await self._any_up.wait()

    def handlers(self) -> "grpc.GenericRpcHandler[bytes, object]":
        methods = {"Check": rpc_handlers.unary(self._check), "Watch": rpc_handlers.server_stream(self._watch)}
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, methods)

    def set(self, lane: ServingPath, up: bool) -> None:
        """Set whether a lane takes calls."""
        if up is (lane in self._up):
            return
        self._set(up, self._name(lane))
        was = self.ready
        self._up ^= {lane}
        if self.ready is not was:
            self._set(up, *self._services)
        if up:
            self._any_up.set()

    def close(self) -> None:
        """Set all names to NOT_SERVING for good."""
        self._set(False, *self._statuses)
        self._closed = True

    def _set(self, up: bool, *names: str) -> None:
        if self._closed:
            return
        self._statuses |= dict.fromkeys(names, _SERVING if up else _NOT_SERVING)
        self._change.set()
        self._change = asyncio.Event()

    async def _check(self, raw: bytes, context: Context) -> health_pb2.HealthCheckResponse:
        name = _asked(raw)
        if name not in self._statuses:
            raise NotFound(f"service: {name[:100]!r} is not served here")
        return health_pb2.HealthCheckResponse(status=self._statuses[name])

    async def _watch(self, raw: bytes, context: Context) -> None:
        name, told = _asked(raw), None
        while True:
            # Before the status is read: a change during the write is seen.
            change, status = self._change, self._statuses.get(name, _UNKNOWN)
            if status != told:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                told = status
            await change.wait()

    def _name(self, lane: ServingPath) -> str:
        return f"{self._named}/{lane}"


def _asked(raw: bytes) -> str:
    """The name in a request. Raises: BadInput; MessageTooLarge."""
    name: str = parse(health_pb2.HealthCheckRequest, compression.small(raw)).service
    return name
