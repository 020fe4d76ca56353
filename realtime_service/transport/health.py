"""The standard gRPC health service of a replica, for the whole and for each lane."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from shared_model.types import ServingPath

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Readiness:
    """`services`: names that are SERVING while any lane takes calls; clients and load balancers avoid a replica that is
    not. Each lane has a name under the first of them, like `scoring.v1.ScoringService/latency`."""

    def __init__(self, services: Sequence[str], lanes: Sequence[ServingPath]) -> None:
        self._services = ("", *services)
        self._named = services[0]
        self._lanes = tuple(lanes)
        self._up: set[ServingPath] = set()
        self._any_up = asyncio.Event()
        self._health: Any = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs predate it

    @property
    def ready(self) -> bool:
        """Whether any lane takes calls."""
        return bool(self._up)

    async def until_ready(self) -> None:
        """Wait until a lane takes calls."""
        await self._any_up.wait()

    async def serve(self, listener: grpc.aio.Server) -> None:
        """Start to answer health checks; no lane is ready yet."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, listener)
        for name in (*self._services, *map(self._name, self._lanes)):
            await self._health.set(name, _NOT_SERVING)

    async def set(self, lane: ServingPath, up: bool) -> None:
        """Set whether a lane takes calls."""
        if up is (lane in self._up):
            return
        await self._health.set(self._name(lane), _SERVING if up else _NOT_SERVING)
        was = self.ready
        self._up ^= {lane}
        if self.ready is not was:
            for name in self._services:
                await self._health.set(name, _SERVING if up else _NOT_SERVING)
        if up:
            self._any_up.set()

    async def close(self) -> None:
        """Set all names to NOT_SERVING for good."""
        await self._health.enter_graceful_shutdown()

    def _name(self, lane: ServingPath) -> str:
        return f"{self._named}/{lane}"
