"""The HTTP listener of a serving process: its port, TLS, and end."""

import asyncio
import logging
import socket
import ssl
from typing import cast

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from realtime_service.http.connection import Bounds, Connection
from realtime_service.routing.inflight import Inflight
from realtime_service.settings import ServiceSettings, address_taken
from shared_model.tls import CertificateFiles

VARIABLE = "TANDEM_HTTP_ADDRESS"
#: Of a connection with TLS.
HANDSHAKE_SECONDS = 20.0
_BACKLOG = 1024

#: uvicorn warns of each malformed request, which anybody can send.
logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def bind(address: str, shared: bool) -> socket.socket:
    """`shared`: other workers of this service listen on the same port. Raises: SettingError."""
    host, _, port = address.rpartition(":")
    try:
        family, *_, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        # With the protocol named, asyncio turns Nagle's algorithm off: an answer goes in two writes, and the second
        # would wait 40 ms for an acknowledgement of the first.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if shared else socket.SO_REUSEADDR, 1)
        bound.bind(place)
        # At once, so that a second service on this port is refused; requests wait until `start`.
        bound.listen(_BACKLOG)
    except OSError as error:
        raise address_taken(address, f"{error.strerror}; is the port taken?", VARIABLE) from error
    return bound


class HttpListener:
    """Takes requests from `start` until `stop`."""

    def __init__(
        self, bound: socket.socket, application: ASGIApp, settings: ServiceSettings, files: CertificateFiles | None
    ) -> None:
        """`files`: of TLS."""
        most = settings.http.connections
        connections = Inflight("connections", most, max(1, most // 2))
        bounds = Bounds(connections, settings.connection_idle_seconds, settings.connection_age_seconds)
        # `proxy_headers` would let any caller claim an address.
        config = Config(application, lifespan="off", ws="none", log_config=None, access_log=False, proxy_headers=False)
        config.load()
        self._bound = bound
        self._files = files
        self._state = ServerState()
        self._make = lambda: Connection(bounds, config, self._state)

    @property
    def port(self) -> int:
        port: int = self._bound.getsockname()[1]
        return port

    async def start(self) -> None:
        context = _following(self._files) if self._files else None
        handshake = HANDSHAKE_SECONDS if context else None
        self._server = await asyncio.get_running_loop().create_server(
            self._make, sock=self._bound, ssl=context, ssl_handshake_timeout=handshake, backlog=_BACKLOG
        )

    async def stop(self, grace: float) -> None:
        """Take no new request, and let those under way end, at most for `grace` seconds."""
        self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=grace)
        for connection in cast("list[Connection]", list(self._state.connections)):
            connection.abort()


def _following(files: CertificateFiles) -> ssl.SSLContext | None:
    """A context whose handshakes have the certificate of that moment."""
    first = files.current().context
    if first is None:
        return None

    def renew(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = files.current().context or first

    first.sni_callback = renew
    return first
