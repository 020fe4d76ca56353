"""Whether an address can be reached from this host alone: there, nothing needs TLS. Standard library only."""

import ipaddress
import re


def is_loopback(host: str) -> bool:
    """Of a host's name or number. Another name than `localhost` counts as other hosts', whatever it means here."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def stays_here(target: str) -> bool:
    """Of HOST:PORT, several of them with commas, or a gRPC target such as `ipv4:…`, `dns:///…` and `unix:…`."""
    if re.match(r"unix(-abstract)?:", target):
        return True
    places = re.sub(r"^(?:dns|ipv4|ipv6):(?://[^/]*/)?", "", target).split(",")
    return all(is_loopback(re.sub(r":\d+$", "", place.strip())) for place in places)
