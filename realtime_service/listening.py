"""What a serving process listens on, and what it tells of itself there: gRPC, health by lane, metrics."""

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, start_http_server

from realtime_service.pings import TAKING_PINGS
from realtime_service.requests import TRANSPORT_MESSAGE_BYTES
from realtime_service.workers import lock
from shared_model.errors import SettingError
from shared_model.types import ServingPath

_SERVING = health_pb2.HealthCheckResponse.SERVING
_EVERYWHERE = ("0.0.0.0", "[::]")  # noqa: S104 - looked for, not bound
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Readiness:
    """The standard health service. `services`: names that are SERVING while any lane takes calls, as clients and load
    balancers leave a replica that is not; the first has a name for each lane, too, like
    `scoring.v1.ScoringService/latency`."""

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
        """Wait for the first lane that takes calls."""
        await self._any_up.wait()

    async def serve(self, listener: grpc.aio.Server) -> None:
        """Answer health checks from now on: no lane is ready yet."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, listener)
        for name in (*self._services, *map(self._name, self._lanes)):
            await self._health.set(name, _NOT_SERVING)

    async def set(self, lane: ServingPath, up: bool) -> None:
        """Whether a lane takes calls."""
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
        """Nothing takes new calls any more, and nothing will."""
        await self._health.enter_graceful_shutdown()

    def _name(self, lane: ServingPath) -> str:
        return f"{self._named}/{lane}"


def make_listener(shared: bool) -> grpc.aio.Server:
    """`shared`: other workers of this service listen on the same port. Else a second service there must fail."""
    return grpc.aio.server(
        options=[
            ("grpc.so_reuseport", int(shared)),
            ("grpc.max_receive_message_length", TRANSPORT_MESSAGE_BYTES),
            *TAKING_PINGS,
        ]
    )


def bind(listener: grpc.aio.Server, address: str) -> str:
    """Returns the address with its port. Raises: SettingError where somebody else listens."""
    try:
        port = listener.add_insecure_port(address)
    except RuntimeError as error:
        raise lock.taken(address, "is the port taken?") from error
    return f"{address.rpartition(':')[0]}:{port}"


def bind_privately(listener: grpc.aio.Server, public: str) -> str:
    """An address of this process alone, on the host of the public one."""
    return bind(listener, f"{public.rpartition(':')[0]}:0")


def advertised(address: str, host: str) -> str:
    """Where other hosts find what listens on an address: at `host`, if one is named; at this host's own name, if it
    listens everywhere."""
    listens, _, port = address.rpartition(":")
    named = host or (socket.gethostname() if listens in _EVERYWHERE else listens)
    return f"{named}:{port}"


def offer_reflection(listener: grpc.aio.Server, services: Sequence[str]) -> None:
    reflection.enable_server_reflection((*services, health.SERVICE_NAME, reflection.SERVICE_NAME), listener)


def serve_metrics(stack: contextlib.AsyncExitStack, address: str, registry: CollectorRegistry) -> str:
    """Serve metrics until the stack closes. Returns the address with its port. Raises: SettingError."""
    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host, registry)
    except OSError as error:
        raise SettingError(f"TANDEM_METRICS_ADDRESS={address}: cannot listen there: {error.strerror}") from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    stack.callback(stop)
    return f"{host}:{server.server_port}"
