"""Serves metrics over HTTP: prometheus_client's application, on a server that bounds connections and their time."""

import contextlib
import socket
import threading
import time
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from shared_model.errors import SettingError

#: Seconds from the opening of a connection to its end, and connections at once. Further ones are closed.
REQUEST_SECONDS = 5.0
MAX_CONNECTIONS = 16


def serve_metrics(stack: contextlib.AsyncExitStack, address: str, registry: CollectorRegistry) -> str:
    """Serve metrics until the stack closes. Returns the address with its port. Raises: SettingError."""
    host, _, port = address.rpartition(":")
    try:
        server = _Server(host, int(port), registry)
    except OSError as error:
        raise SettingError(f"TANDEM_METRICS_ADDRESS={address}: cannot listen there: {error.strerror}") from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    stack.callback(stop)
    return f"{host}:{server.server_port}"


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection. The accepting thread ends those that take too long, twice a second."""

    daemon_threads = True
    request_queue_size = 4 * MAX_CONNECTIONS
    # A thread whose connection was ended needs no wait.
    block_on_close = False

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        family, *_, place = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        self._lock = threading.Lock()
        # When each is to end, in monotonic seconds.
        self._ends: dict[socket.socket, float] = {}
        super().__init__((str(place[0]), port), _Handler)
        self.set_app(make_wsgi_app(registry))

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._ends) >= MAX_CONNECTIONS
            if not full:
                self._ends[request] = time.monotonic() + REQUEST_SECONDS
        if full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._ends.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [connection for connection, end in self._ends.items() if end < now]
            for connection in late:
                # The thread that reads from it sees its end.
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that was ended is no error of the service."""
