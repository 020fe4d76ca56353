"""Which replicas a client talks to, how it notices that one is gone, and when a call is made again."""

import ipaddress
import json
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from realtime_service.rpc.keepalive import Options, watchful
from shared_model.errors import BadInput

#: A bearer token, or a function that returns the one that is valid now.
Token = str | Callable[[], str]
Metadata = tuple[tuple[str, str], ...]

SERVICE = "scoring.v1.ScoringService"
DEFAULT_ADDRESS = "127.0.0.1:50051"
#: Why a client cannot be pickled.
ONE_PROCESS = "a client holds connections and threads: make one in each process, after it was forked or spawned"

#: In turn, among replicas whose health says SERVING: one that drains gets no new calls before it closes its listener.
_SPREADING = {"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": SERVICE}}
#: Not those that stream texts to the service: it may have answered some of them. Scoring has no effect, and Submit is
#: deduplicated by its request id.
_REPEATABLE = ("Score", "Submit", "GetResult", "WatchResults", "Lookup", "Describe")
#: gRPC makes a call again once: a request that kills its replica meets no third. A refusal says when to come back, or
#: that it is no use (`grpc-retry-pushback-ms`). A listener that closes ends its calls with CANCELLED.
_REPEATING = {
    "methodConfig": [
        {
            "name": [{"service": SERVICE, "method": method} for method in _REPEATABLE],
            "retryPolicy": {
                "maxAttempts": 2,
                # Not sooner: only a moment after its calls does a channel know that a connection is gone.
                "initialBackoff": "0.02s",
                "maxBackoff": "0.02s",
                "backoffMultiplier": 1,
                "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"],
            },
        }
    ],
    # Of any number of calls, at most a tenth of those answered and 10 more are made again.
    "retryThrottling": {"maxTokens": 20, "tokenRatio": 0.1},
}
#: Bytes of a request that is kept until its call has ended; a larger one would not be made again. Larger than any
#: valid one.
_KEPT_BYTES = 8 << 20

_SCHEME = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|xds|vsock):")


@dataclass(frozen=True)
class Caller:
    """A caller: `id` is the name that it claims, `token` proves a name."""

    id: str = ""
    token: Token = field(default="", repr=False)

    def metadata(self, lane: str = "") -> Metadata:
        """The metadata of a call. Raises: BadInput for what no header can carry, without quoting it."""
        token = self.token if isinstance(self.token, str) else self.token()
        for argument, value in (("caller_id", self.id), ("token", token), ("lane", lane)):
            if not (value.isascii() and value.isprintable()):
                raise BadInput(argument, "holds characters other than printable ASCII")
        values = {"x-caller-id": self.id, "authorization": token and f"Bearer {token}", "x-tandem-lane": lane}
        return tuple((name, value) for name, value in values.items() if value)


def options(attempts: int) -> Options:
    """gRPC options of a channel. `attempts`: how often a call may be made. Raises: ValueError unless it is 1 or 2."""
    if attempts not in (1, 2):
        raise ValueError(f"attempts={attempts}: expected 1 or 2")
    return (
        ("grpc.service_config", json.dumps(_SPREADING | _REPEATING if attempts == 2 else _SPREADING)),
        ("grpc.per_rpc_retry_buffer_size", _KEPT_BYTES),
        # A replica that is stopped or cut off answers no ping: after two seconds its calls end and the others get them.
        # Without calls there are no more than two pings, so that a server with default settings does not take offence.
        *watchful(ping_ms=1_000, longest_pause_ms=2_000),
    )


def named(addresses: str | Sequence[str]) -> str:
    """The addresses as a message names them."""
    return addresses if isinstance(addresses, str) else ", ".join(addresses)


def hosts(addresses: str | Sequence[str]) -> list[str]:
    """The host of each address of a list; empty for one target of gRPC's own."""
    if isinstance(addresses, str) and _SCHEME.match(addresses):
        return []
    several = addresses.split(",") if isinstance(addresses, str) else addresses
    return [address.strip().rpartition(":")[0].strip("[]") for address in several]


def target(addresses: str | Sequence[str]) -> str:
    """The gRPC target of the replicas at `addresses`: `HOST:PORT`, several of them (a sequence, or with commas), or a
    target of gRPC's own (`ipv4:…`, `dns:///…`, `unix:…`).

    A single name is looked up again and again and may stand for many replicas; names of a list are looked up once.
    Raises: BadInput for any other form, and for names of a list that cannot all be looked up.
    """
    several = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    several = [address.strip() for address in several] or [""]
    if isinstance(addresses, str) and _SCHEME.match(addresses):
        return addresses
    for address in several:
        port = re.fullmatch(r"[^/]+:(\d{1,5})", address)
        if port is None or not 0 < int(port[1]) < 1 << 16 or _SCHEME.match(address):
            raise BadInput("addresses", f"{address!r}: expected HOST:PORT, or several, or one target like ipv4:…")
    if len(several) == 1:
        return several[0]
    # gRPC takes lists of numbers, not of names, and all of one family.
    for family, scheme in ((socket.AF_INET, "ipv4"), (socket.AF_INET6, "ipv6")):
        found = [_numbers(address, family) for address in several]
        if all(found):
            return f"{scheme}:" + ",".join(number for numbers in found for number in numbers)
    raise BadInput("addresses", f"{', '.join(several)}: they cannot all be looked up, as IPv4 or as IPv6")


def _numbers(address: str, family: socket.AddressFamily) -> list[str]:
    """Every HOST:PORT that an address means in one family; none when it has no meaning there."""
    host, _, port = address.rpartition(":")
    try:
        found = {str(it[4][0]) for it in socket.getaddrinfo(host.strip("[]"), int(port), family, socket.SOCK_STREAM)}
    except socket.gaierror:
        return []
    return [f"[{it}]:{port}" if ipaddress.ip_address(it).version == 6 else f"{it}:{port}" for it in sorted(found)]
