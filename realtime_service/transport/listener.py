"""The listening sockets of a serving process: gRPC with reflection, and metrics."""

import contextlib
import socket
from collections.abc import Sequence

import grpc.aio
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, start_http_server

from realtime_service.rpc.keepalive import TAKING_PINGS
from realtime_service.settings import address_taken
from realtime_service.transport.scoring_v1.requests import TRANSPORT_MESSAGE_BYTES
from shared_model.errors import SettingError

_EVERYWHERE = ("0.0.0.0", "[::]")  # noqa: S104 - looked for, not bound


def make_listener(shared: bool) -> grpc.aio.Server:
    """`shared`: other workers of this service listen on the same port; otherwise a second service there must fail."""
    return grpc.aio.server(
        options=[
            ("grpc.so_reuseport", int(shared)),
            ("grpc.max_receive_message_length", TRANSPORT_MESSAGE_BYTES),
            *TAKING_PINGS,
        ]
    )


def bind(listener: grpc.aio.Server, address: str) -> str:
    """Returns the address with its port. Raises: SettingError if another process listens there."""
    try:
        port = listener.add_insecure_port(address)
    except RuntimeError as error:
        raise address_taken(address, "is the port taken?") from error
    return f"{address.rpartition(':')[0]}:{port}"


def advertised(address: str, host: str) -> str:
    """The address for other hosts: at `host`, if one is set; at this host's name, if the listener binds to all
    interfaces."""
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
