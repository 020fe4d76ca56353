"""The listening sockets of a serving process: gRPC with reflection, and metrics."""

import contextlib
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import grpc.aio
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from realtime_service.rpc import credentials
from realtime_service.rpc.keepalive import TAKING_PINGS
from realtime_service.settings import address_taken
from realtime_service.transport.scoring_v1.requests import TRANSPORT_MESSAGE_BYTES
from shared_model.errors import SettingError
from shared_model.tls import CertificateFiles

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


def bind(listener: grpc.aio.Server, address: str, files: CertificateFiles | None = None) -> str:
    """`files`: of TLS. Returns the address with its port. Raises: SettingError if another process listens there."""
    try:
        port = (
            listener.add_secure_port(address, credentials.listener(files))
            if files
            else listener.add_insecure_port(address)
        )
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


class _MetricsServer(ThreadingWSGIServer):
    """A thread for each connection. `files`: of TLS; None: plain."""

    files: CertificateFiles | None = None

    def get_request(self) -> tuple[Any, Any]:
        connection, peer = super().get_request()
        if self.files and (context := self.files.current().context):
            # The handshake comes with the first read, in the connection's own thread.
            connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, peer

    def handle_error(self, request: Any, peer: Any) -> None:
        """A connection that breaks, or is refused in its handshake, is the caller's affair."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, peer)


class _MetricsHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged."""


def serve_metrics(
    stack: contextlib.AsyncExitStack, address: str, registry: CollectorRegistry, files: CertificateFiles | None = None
) -> str:
    """Serve metrics until the stack closes, with TLS by `files`. Returns the address with its port. Raises:
    SettingError."""
    host, _, port = address.rpartition(":")
    try:
        server = make_server(host, int(port), make_wsgi_app(registry), _MetricsServer, _MetricsHandler)
    except OSError as error:
        raise SettingError(f"TANDEM_METRICS_ADDRESS={address}: cannot listen there: {error.strerror}") from error
    server.files = files
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    stack.callback(stop)
    return f"{host}:{server.server_port}"
