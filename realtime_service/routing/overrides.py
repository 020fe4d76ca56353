"""The routing policy: numbers that operators set in Redis override those of a process's settings.

Numbers have the names of `policy set`: `latency_below_ms`, `latency.p95_ms`, `dynamic.load_target`, `quota`,
`quota.CALLER`. A policy with one invalid number is rejected as a whole. CALLER is the subject of a verified token, with
or without "token:" before it, or "addr:ADDRESS"; "model:MODEL/CALLER" for another model than the default one, which
has the caller's quota, counted by itself, where it has none of its own.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import DecodeError

from protos.scoring.v1.storage_pb2 import RoutingPolicy
from realtime_service.identity import address_key, without_model
from realtime_service.settings import SERVED, ServiceSettings
from realtime_service.settings.lanes import NOT_NEGATIVE, SHARE
from shared_model.errors import BadInput
from shared_model.settings import POSITIVE, Check
from shared_model.types import ServingPath


@dataclass(frozen=True, slots=True)
class Policy:
    """The numbers that operators may change while replicas run. Thresholds in seconds; a timeout equal to either is
    dynamic.

    `version` grows with every change; 0 is that of a process's settings. `targets`: p95 by lane, seconds;
    `load_targets`: ρ above which a lane offloads requests, 0 for never. `quota`: texts a second of one caller, 0 for no
    limit; `quotas`: those of callers with a quota of their own, as operators have named the callers.
    `by_operators`: the numbers that operators have set, by the names of `policy set`.
    """

    version: int = 0
    latency_below: float = 0.1
    throughput_above: float = 1.0
    targets: Mapping[ServingPath, float] = dataclasses.field(default_factory=dict)
    load_targets: Mapping[ServingPath, float] = dataclasses.field(default_factory=dict)
    quota: float = 0.0
    quotas: Mapping[str, float] = dataclasses.field(default_factory=dict)
    by_operators: Mapping[str, float] = dataclasses.field(default_factory=dict)
    _named: Mapping[str, str] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_named", {_quota_key(name): name for name in self.quotas})

    def quota_of(self, quota_key: str) -> tuple[float, str]:
        """The quota of a caller (`Identity.quota_key`), and its name among these numbers."""
        for key in (quota_key, without_model(quota_key)):
            name = key if key in self.quotas else self._named.get(key)
            if name is not None:
                break
        return (self.quota, "quota") if name is None else (self.quotas[name], f"quota.{name}")

    def origin(self, *names: str) -> str:
        """Suffix for a reason that depends on these numbers: empty if all of them are those of the settings."""
        return " by the operators' policy" if any(name in self.by_operators for name in names) else ""


def _quota_key(name: str) -> str:
    """That of the caller whom operators call `name`. Addresses were named as gRPC does once, and those of IPv6 one by
    one. A bare name is a token's subject: a claimed name has no quota of its own."""
    bare = without_model(name)
    if bare != name:
        return name.removesuffix(bare) + _quota_key(bare)
    kind, _, address = name.partition(":")
    if kind in ("addr", "ipv4", "ipv6"):
        return address_key(address.removeprefix("%5B").removesuffix("%5D"))
    return name if kind == "token" else f"token:{name}"


@dataclass(frozen=True)
class _Field:
    """A number, or one for each lane or caller. `stored`: its field in the message; `policy`: its field in `Policy`, in
    a unit that is `unit` times the message's; `spelled`: name of each number, with {} for the lane or the caller."""

    stored: str
    policy: str
    check: Check
    unit: float = 1.0
    spelled: str = ""

    @property
    def single(self) -> bool:
        return not self.spelled

    def name(self, key: str = "") -> str:
        return self.spelled.format(key) or self.stored


_SINGLE = (
    _Field("latency_below_ms", "latency_below", POSITIVE, 1000.0),
    _Field("throughput_above_ms", "throughput_above", POSITIVE, 1000.0),
    _Field("quota", "quota", NOT_NEGATIVE),
)
_OF_LANES = (
    _Field("p95_ms", "targets", NOT_NEGATIVE, 1000.0, "{}.p95_ms"),
    _Field("load_target", "load_targets", SHARE, spelled="{}.load_target"),
)
_OF_CALLERS = _Field("quotas", "quotas", NOT_NEGATIVE, spelled="quota.{}")
#: Upper bound of versions, which no number of changes reaches.
_VERSIONS = 2**53
_FIELDS = (*_SINGLE, *_OF_LANES, _OF_CALLERS)
_BY_NAME: Mapping[str, tuple[_Field, str]] = {
    **{field.name(): (field, "") for field in _SINGLE},
    **{field.name(lane): (field, lane) for field in _OF_LANES for lane in SERVED},
}


def of(settings: ServiceSettings) -> Policy:
    """The policy where operators have set nothing."""
    return Policy(
        latency_below=settings.latency_below_ms / 1000,
        throughput_above=settings.throughput_above_ms / 1000,
        targets={lane: settings.lane(lane).p95_ms / 1000 for lane in SERVED},
        load_targets={lane: settings.lane(lane).load_target for lane in SERVED},
        quota=settings.quota,
    )


def read(stored: bytes | None, settings: Policy) -> Policy:
    """The policy of `settings` with the numbers that operators have `stored`, if any.

    Raises: BadInput naming the invalid number, or saying that the policy is damaged.
    """
    return settings if stored is None else over(settings, decode(stored))


def over(settings: Policy, message: RoutingPolicy) -> Policy:
    """The policy of `settings` with the numbers of `message`, each of which is valid.

    Raises: BadInput if they contradict each other.
    """
    values: dict[str, Any] = {"version": message.version, "by_operators": numbers(message)}
    for field in _FIELDS:
        stored = getattr(message, field.stored)
        if field is _OF_CALLERS:
            values[field.policy] = {**settings.quotas, **stored}
        elif not field.single:
            by_lane = {ServingPath(lane): value / field.unit for lane, value in stored.items()}
            values[field.policy] = {**getattr(settings, field.policy), **by_lane}
        elif message.HasField(field.stored):
            values[field.policy] = stored / field.unit
    policy = replace(settings, **values)
    if policy.latency_below > policy.throughput_above:
        above = f"throughput_above_ms, which is {policy.throughput_above * 1000:g}"
        raise BadInput("latency_below_ms", f"is {policy.latency_below * 1000:g}: expected at most {above}")
    return policy


@functools.lru_cache(maxsize=1)
def decode(stored: bytes) -> RoutingPolicy:
    """A message whose numbers are valid; do not change it. Cached, because every heartbeat reads the same one.

    Raises: BadInput.
    """
    try:
        message = RoutingPolicy.FromString(stored)
    except DecodeError as error:
        raise BadInput("policy", "is damaged; `policy reset --all` writes it anew") from error
    if not 1 <= message.version < _VERSIONS:
        raise BadInput("version", f"is {message.version}: expected 1 or more; `policy reset --all` writes it anew")
    for name, value in numbers(message).items():
        check(name, value)
    return message


def check(name: str, value: float) -> None:
    """Raises: BadInput if there is no such number, or its value is invalid."""
    accepted = _locate(name)[0].check
    if not accepted.accepts(value):
        raise BadInput(name, f"is {value:g}: expected {accepted.expected}")


def change(message: RoutingPolicy, changes: Mapping[str, float | None]) -> RoutingPolicy:
    """The next version, with these numbers; None resets one to the settings. Raises: BadInput."""
    changed = RoutingPolicy()
    changed.CopyFrom(message)
    # It covers the version before; the new one is signed when it is stored.
    changed.ClearField("signature")
    changed.version += 1
    for name, value in changes.items():
        field, key = _locate(name)
        stored = getattr(changed, field.stored)
        if value is not None:
            check(name, value)
        if value is None and field.single:
            changed.ClearField(field.stored)
        elif value is None:
            stored.pop(key, None)
        elif field.single:
            setattr(changed, field.stored, value)
        else:
            stored[key] = value
    return changed


def numbers(message: RoutingPolicy) -> dict[str, float]:
    """The numbers that operators have set, by name."""
    found: dict[str, float] = {}
    for field in _FIELDS:
        stored = getattr(message, field.stored)
        if not field.single:
            found |= {field.name(key): value for key, value in stored.items()}
        elif message.HasField(field.stored):
            found[field.name()] = stored
    return found


def table(policy: Policy) -> Iterator[tuple[str, float]]:
    """All numbers of a policy by name, in the message's units."""
    for field in _FIELDS:
        value = getattr(policy, field.policy)
        if field.single:
            yield field.name(), value * field.unit
        else:
            yield from ((field.name(key), number * field.unit) for key, number in value.items())


def _locate(name: str) -> tuple[_Field, str]:
    """The field of a number, and its lane or caller. Raises: BadInput."""
    if found := _BY_NAME.get(name):
        return found
    quota, _, caller = name.partition(".")
    if quota == "quota" and caller and caller.isprintable():
        return _OF_CALLERS, caller
    raise BadInput(name, f"is not a number of the policy; it has {', '.join(_BY_NAME)} and quota.CALLER")
