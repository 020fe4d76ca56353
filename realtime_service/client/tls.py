"""How a client's connections are secured, and where a token may not travel."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from realtime_service.client.channel import Token, hosts
from realtime_service.rpc.credentials import ChannelTls
from shared_model.addresses import stays_here
from shared_model.errors import BadInput

#: A path of a PEM file, or its contents.
Pem = str | Path | bytes


@dataclass(frozen=True)
class Tls:
    """TLS of a client. `ca`: the authorities that the service's certificate must come from, by default the system's.
    `cert` and `key`: a certificate of the caller's own, for a service that asks for one. `name`: the name in the
    service's certificate, by default the host that is called."""

    ca: Pem = b""
    cert: Pem = b""
    key: Pem = field(default=b"", repr=False)
    name: str = ""


def secured(tls: "bool | Tls", addresses: str | Sequence[str]) -> ChannelTls | None:
    """None for plain connections. Raises: BadInput for files that cannot be read or are no PEM, half a pair, and hosts
    without a name that all their certificates carry."""
    if tls is False:
        return None
    given = Tls() if tls is True else tls
    if bool(given.cert) != bool(given.key):
        raise BadInput("tls", "a certificate and its key go together")
    called = set(hosts(addresses))
    if len(called) > 1 and not given.name:
        raise BadInput("tls", "several hosts: name what all their certificates carry, or call them by one DNS name")
    # With several addresses gRPC would look for all of them in a certificate.
    name = given.name or (next(iter(called)) if len(hosts(addresses)) > 1 else "")
    return ChannelTls(_pem("ca", given.ca), _pem("cert", given.cert), _pem("key", given.key), name)


def check_token(token: Token, addresses: str | Sequence[str], tls: "bool | Tls", insecure: bool) -> None:
    """Raises: BadInput for a token that would leave this host in clear."""
    listed = addresses if isinstance(addresses, str) else ",".join(addresses)
    if token and tls is False and not insecure and not stays_here(listed):
        raise BadInput("token", f"would travel to {listed} in clear: call with TLS, or allow it with `insecure`")


def _pem(name: str, given: Pem) -> bytes:
    if not given:
        return b""
    try:
        pem = given if isinstance(given, bytes) else Path(given).read_bytes()
    except OSError as error:
        raise BadInput(name, f"{given!s}: cannot be read: {error.strerror}") from error
    if b"-----BEGIN " not in pem:
        # Without its contents, which may be a key.
        raise BadInput(name, f"{'its bytes' if isinstance(given, bytes) else given}: is no PEM file")
    return pem
