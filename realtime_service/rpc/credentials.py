"""gRPC credentials from certificates: of a listener, which takes renewed ones, and of a channel."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from realtime_service.rpc.keepalive import Options
from shared_model.tls import CertificateFiles, Credentials


def listener(files: CertificateFiles) -> grpc.ServerCredentials:
    """Credentials that follow the files: each connection gets the certificate that is valid then. TLS 1.2 and later."""
    given = files.current()

    # Its type stubs do not know that it may return None, for those of the last connection.
    def renewed() -> Any:
        nonlocal given
        if (latest := files.current()) is given:
            return None
        given = latest
        return _configuration(latest)

    return grpc.dynamic_ssl_server_credentials(_configuration(given), renewed, bool(given.client_ca))


def _configuration(read: Credentials) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(read.key, read.cert)], read.client_ca or None)


@dataclass(frozen=True)
class ChannelTls:
    """TLS of a channel. `ca`, `cert` and `key` are PEM, `name` is the one that the other side's certificate must carry;
    empty: the system's authorities, no certificate of one's own, the host that is called."""

    ca: bytes = b""
    cert: bytes = b""
    key: bytes = b""
    name: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.ca or _system_authorities(), self.key or None, self.cert or None)

    @property
    def options(self) -> Options:
        return (("grpc.default_authority", self.name),) if self.name else ()


def _system_authorities() -> bytes | None:
    """None where the system has no such file: then gRPC's own."""
    path = ssl.get_default_verify_paths().cafile
    return Path(path).read_bytes() if path else None
