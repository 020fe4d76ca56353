"""The identity of a caller, and the permissions that come with it."""

import functools
import ipaddress
import json
import urllib.parse
from dataclasses import dataclass
from enum import StrEnum

from shared_model.types import ServingPath


class Role(StrEnum):
    CALLER = "caller"
    OPERATOR = "operator"
    REPLICA = "replica"
    NIGHT = "night"


#: One of these roles may have texts scored, and ask for results.
SCORERS = frozenset({Role.CALLER, Role.OPERATOR, Role.NIGHT})


#: No key of a caller begins like this, and no name of a model holds a slash.
_OF_MODEL = "model:"


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller of one call.

    `key`: "token:SUBJECT" of a verified token, "claimed:NAME" of `x-caller-id`, else `address_key`; `quota_key`: what
    quotas and fair queueing count by: the key of a verified caller, the address of any other. `lanes`, `models`: those
    that it may use, None for all. `sees_internals`: addresses, paths and errors; `sees_precomputed`: whether an answer
    was scored before.
    """

    key: str
    quota_key: str
    verified: bool = False
    roles: frozenset[Role] = frozenset({Role.CALLER})
    lanes: frozenset[ServingPath] | None = None
    models: frozenset[str] | None = None
    sees_internals: bool = False
    sees_precomputed: bool = False

    @property
    def may_score(self) -> bool:
        return not SCORERS.isdisjoint(self.roles)

    def may_use(self, lane: ServingPath) -> bool:
        return self.lanes is None or lane in self.lanes

    def may_ask(self, model: str) -> bool:
        """`model`: the name of a release."""
        return self.models is None or model in self.models

    def may_ask_release(self, release: str) -> bool:
        """`release`: an id, or what a caller takes for one."""
        return self.may_ask(release.rpartition("-")[0])


def of_model(quota_key: str, model: str) -> str:
    """The key by which quotas and fair queueing count a caller of a model; "" is the default one, where it stays."""
    return f"{_OF_MODEL}{model}/{quota_key}" if model else quota_key


def without_model(quota_key: str) -> str:
    """The same for the default model."""
    return quota_key.partition("/")[2] if quota_key.startswith(_OF_MODEL) else quota_key


def address_key(address: str) -> str:
    """The name of the callers at an address, "addr:ADDRESS". A caller usually has a network of IPv6 with 64 bits: its
    addresses share one name, "addr:NETWORK/64", except on this host and on one link."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return f"addr:{address}"
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped:
            return f"addr:{found.ipv4_mapped}"
        if not (found.is_link_local or found.is_loopback):
            return f"addr:{ipaddress.ip_network((found.packed, 64), strict=False)}"
    return f"addr:{found}"


@functools.lru_cache(maxsize=4096)
def peer_key(peer: str) -> str:
    """`address_key` of a peer as gRPC names it, like "ipv4:10.0.0.7:4711" or "ipv6:%5B::1%5D:4711"; of a Unix socket,
    "unix:"."""
    kind, _, rest = peer.partition(":")
    address = "unix" if kind.startswith("unix") else urllib.parse.unquote(rest).rpartition(":")[0].strip("[]")
    return address_key(address)


@functools.lru_cache(maxsize=1024)
def pack(identity: Identity) -> str:
    """ASCII, for the metadata of a forwarded call."""
    fields = {
        "key": identity.key,
        "quota_key": identity.quota_key,
        "verified": identity.verified,
        "roles": sorted(identity.roles),
        "lanes": None if identity.lanes is None else sorted(identity.lanes),
        "models": None if identity.models is None else sorted(identity.models),
        "sees_internals": identity.sees_internals,
        "sees_precomputed": identity.sees_precomputed,
    }
    return json.dumps(fields)


@functools.lru_cache(maxsize=1024)
def unpack(packed: str) -> Identity:
    """The inverse of `pack`. A newer replica may send roles and lanes that this one does not know: they grant nothing.

    Raises: ValueError, KeyError, TypeError for anything else.
    """
    fields = json.loads(packed)
    lanes, models = fields["lanes"], fields["models"]
    return Identity(
        key=str(fields["key"]),
        quota_key=str(fields["quota_key"]),
        verified=bool(fields["verified"]),
        roles=known_roles(fields["roles"]),
        lanes=None if lanes is None else known_lanes(lanes),
        models=None if models is None else frozenset(models),
        sees_internals=bool(fields["sees_internals"]),
        sees_precomputed=bool(fields["sees_precomputed"]),
    )


def known_roles(names: list[str]) -> frozenset[Role]:
    return frozenset(role for role in Role if role in names)


def known_lanes(names: list[str]) -> frozenset[ServingPath]:
    return frozenset(lane for lane in ServingPath if lane in names)
