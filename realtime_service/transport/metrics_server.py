"""Serves metrics and the SLA board over HTTP: WSGI, on a server that bounds connections and their time."""

import contextlib
import socket
import sys
import threading
import time
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from shared_model.errors import SettingError
from shared_model.tls import CertificateFiles

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

#: Begins an address that is a socket file.
UNIX = "unix:"
#: Seconds from the opening of a connection to its end, and connections at once. Further ones are closed.
REQUEST_SECONDS = 5.0
MAX_CONNECTIONS = 16


def serve_metrics(
    stack: contextlib.AsyncExitStack, address: str, app: "WSGIApplication", files: CertificateFiles | None = None
) -> str:
    """Serve `app` at HOST:PORT, or at a socket file after UNIX, until the stack closes, with TLS by `files`. Returns
    the address with its port. Raises: SettingError."""
    try:
        server = _Server(address, app, files)
    except OSError as error:
        raise SettingError(f"TANDEM_METRICS_ADDRESS={address}: cannot listen there: {error.strerror}") from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    stack.callback(stop)
    return address if address.startswith(UNIX) else f"{address.rpartition(':')[0]}:{server.server_port}"


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection. The accepting thread ends those that take too long, twice a second."""

    daemon_threads = True
    request_queue_size = 4 * MAX_CONNECTIONS
    # A thread whose connection was ended needs no wait.
    block_on_close = False

    def __init__(self, address: str, app: "WSGIApplication", files: CertificateFiles | None) -> None:
        self.address_family, place = _place(address)
        self._files = files
        self._lock = threading.Lock()
        # When each is to end, in monotonic seconds.
        self._ends: dict[socket.socket, float] = {}
        super().__init__(place, _Handler)  # type: ignore[arg-type]
        self.set_app(app)

    def server_bind(self) -> None:
        if self.address_family is not socket.AF_UNIX:
            super().server_bind()
            return
        # Left by a process that was killed.
        Path(str(self.server_address)).unlink(missing_ok=True)
        # HTTP's own would look for a host and a port.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        connection, peer = super().get_request()
        if self.address_family is socket.AF_UNIX:
            peer = ("localhost", 0)
        if self._files and (context := self._files.current().context):
            # The handshake comes with the first read, in the connection's own thread.
            connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, peer

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
        """A connection that breaks, was ended, or is refused in its handshake, is the caller's affair."""
        # An ended connection with TLS raises ValueError when it is read.
        if not isinstance(sys.exception(), OSError | ValueError):
            super().handle_error(request, client_address)


def _place(address: str) -> tuple[socket.AddressFamily, object]:
    """The family of an address, and the address as `bind` wants it. Raises: OSError."""
    if address.startswith(UNIX):
        return socket.AF_UNIX, address.removeprefix(UNIX)
    host, _, port = address.rpartition(":")
    family, *_, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    return family, (str(place[0]), int(port))
