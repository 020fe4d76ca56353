"""TLS in front of a real redis-server or Sentinel: the embedded one is built without it."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator

from shared_model.commands import certificates
from tests.certified import Certified
from tests.redis_nodes import Node

#: Where the fronts listen, each on the port of its server, which listens on 127.0.0.1 alone.
HOST = "127.0.0.2"
_HANDSHAKE = 0x16


def certificate(own: Certified) -> ssl.SSLContext:
    """Of a server at HOST."""
    certificates.make(own.folder, [[HOST]], days=1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.folder / HOST / certificates.CERTIFICATE, own.folder / HOST / certificates.KEY)
    return context


class Front:
    """Ends TLS of connections, and hands them to `node`. Plain ones are handed on, too: Sentinels and replicas have no
    TLS here. `plain`, `secure`: how many of each there were."""

    def __init__(self, node: Node, context: ssl.SSLContext) -> None:
        self._port, self._context = node.port, context
        self.plain = self.secure = 0
        self._listening = socket.create_server((HOST, node.port))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for connection in (self._listening, *self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listening.accept()[0],), daemon=True).start()

    def _serve(self, outer: socket.socket) -> None:
        with contextlib.suppress(OSError):
            first = outer.recv(1, socket.MSG_PEEK)
            if first and first[0] == _HANDSHAKE:
                outer = self._context.wrap_socket(outer, server_side=True)
                self.secure += 1
            elif first:
                self.plain += 1
            inner = socket.create_connection(("127.0.0.1", self._port))
            self._open += [outer, inner]
            threading.Thread(target=_pump, args=(inner, outer), daemon=True).start()
            _pump(outer, inner)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def fronts(own: Certified, *nodes: Node) -> Iterator[list[Front]]:
    context = certificate(own)
    made = [Front(node, context) for node in nodes]
    try:
        yield made
    finally:
        for front in made:
            front.close()
