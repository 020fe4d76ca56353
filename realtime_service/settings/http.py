"""Settings of the HTTP interface."""

from dataclasses import dataclass

from shared_model.settings import POSITIVE, Check, setting


def _is_address(value: str) -> bool:
    host, _, port = value.rpartition(":")
    return bool(host) and port.isdigit() and int(port) < 65536


ADDRESS = Check(_is_address, "HOST:PORT")


@dataclass(frozen=True)
class HttpSettings:
    address: str = setting(
        "", "Where HTTP with JSON listens, beside gRPC; port 0 picks a free one; empty: nowhere.", ADDRESS
    )
    connections: int = setting(512, "HTTP connections at once, one address's at most half; more are closed.", POSITIVE)
