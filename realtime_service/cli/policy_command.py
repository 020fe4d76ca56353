"""`policy show`, `set`, `reset`: the numbers that operators may change at run time. Each returns the printed table."""

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import redis
from google.protobuf.message import DecodeError

from protos.scoring.v1.storage_pb2 import RoutingPolicy
from realtime_service.process import main
from realtime_service.routing import overrides
from realtime_service.routing.overrides import Policy
from realtime_service.settings import ServiceSettings
from shared_model import settings
from shared_model.commands import common
from shared_model.errors import BadInput, StoreUnavailable, Untrusted
from shared_model.redis_store import keys
from shared_model.settings import StateSettings
from shared_model.trust import audit, high_water, keyring, policy_signature
from shared_model.trust.keyring import Keyring

_SCRIPT = (Path(__file__).parent / "move_policy.lua").read_text()

#: Maps the stored policy to the new one, both as bytes of RoutingPolicy; empty for no policy.
Change = Callable[[bytes], bytes]


def show() -> str:
    return _apply("", lambda stored: stored)


def by_operators() -> dict[str, float]:
    """The numbers that operators have set. Raises: BadInput where they are damaged; StoreUnavailable."""
    main.adopt_file()
    state = settings.load(StateSettings)
    with common.redis_client(state) as client:
        stored = move(client, keyring.load(state), "", lambda stored: stored)
    return overrides.numbers(overrides.decode(stored)) if stored else {}


def set_(assignments: Iterable[str]) -> str:
    """Each assignment is NAME=NUMBER."""
    changes: dict[str, float | None] = {}
    for text in assignments:
        name, _, value = text.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not name or math.isnan(number):
            raise BadInput(text, "expected NAME=NUMBER")
        changes[name] = number
    return _apply("policy set", _changing(changes))


def reset(names: Iterable[str]) -> str:
    """Reset these numbers to the settings."""
    return _apply("policy reset", _changing(dict.fromkeys(names)))


def reset_all() -> str:
    """Reset all numbers to the settings, also if the stored policy is damaged."""

    def emptied(stored: bytes) -> bytes:
        try:
            version = overrides.decode(stored).version if stored else 0
        except BadInput:
            version = 0
        return RoutingPolicy(version=version + 1).SerializeToString()

    return _apply("policy reset --all", emptied, over_any=True)


def move(client: "redis.Redis", trusted: Keyring, what: str, change: Change, over_any: bool = False) -> bytes:
    """Change the policy atomically: retry if another change came first. `what`: for the audit; `over_any`: whatever is
    stored, also unsigned.

    Raises: BadInput for a policy that no operator signed; SettingError without a key to sign with; StoreUnavailable;
    the errors of `change`.
    """
    try:
        while True:
            stored = _stored(client)
            if stored and not over_any:
                _check_signature(stored, trusted)
            new = change(stored)
            if new == stored:
                return new
            signed = policy_signature.signed(_dated(new, stored, trusted, over_any), trusted)
            record = audit.arguments(trusted, what, _words(stored), _words(signed))
            if client.eval(_SCRIPT, 2, keys.routing_policy(), keys.audit("routing"), stored, signed, *record):
                return signed
    except redis.RedisError as error:
        raise StoreUnavailable(f"Redis did not answer: {error}; see `policy show` when it does") from error


def _check_signature(stored: bytes, trusted: Keyring) -> None:
    try:
        policy_signature.check(stored, trusted)
    except Untrusted as error:
        raise BadInput("policy", f"{error}; `policy reset --all` writes it anew") from error


def _dated(new: bytes, stored: bytes, trusted: Keyring, over_any: bool) -> RoutingPolicy:
    """Replicas that verify policies refuse a version below one that they saw. Where the last one is not known, because
    Redis lost it or holds one of others, the next version is the time."""
    policy = RoutingPolicy.FromString(new)
    if trusted.operator and (over_any or not stored):
        policy.version = max(policy.version, int(time.time()), trusted.accepted.of(high_water.POLICY) + 1)
    return policy


def _words(stored: bytes) -> str:
    """For the audit."""
    try:
        message = RoutingPolicy.FromString(stored)
        found = overrides.numbers(message)
    except DecodeError:
        return "damaged"
    said = ", ".join(f"{name}={value:.10g}" for name, value in sorted(found.items()))
    return f"version {message.version}: {said or 'no numbers'}" if stored else ""


def _apply(what: str, change: Change, over_any: bool = False) -> str:
    """Raises: BadInput if a replica with these settings would reject the policy; SettingError; StoreUnavailable."""
    main.adopt_file()
    ours = overrides.of(settings.load(ServiceSettings))

    def accepted(stored: bytes) -> bytes:
        new = change(stored)
        overrides.read(new or None, ours)
        return new

    state = settings.load(StateSettings)
    with common.redis_client(state) as client:
        return _table(move(client, keyring.load(state), what, accepted, over_any), ours)


def _changing(changes: dict[str, float | None]) -> Change:
    def changed(stored: bytes) -> bytes:
        message = overrides.decode(stored) if stored else RoutingPolicy()
        return overrides.change(message, changes).SerializeToString()

    return changed


def _stored(client: "redis.Redis") -> bytes:
    """Empty without a policy, and for a key of another type, which the next change replaces."""
    try:
        return bytes(client.get(keys.routing_policy()) or b"")
    except redis.ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        return b""


def _table(stored: bytes, ours: Policy) -> str:
    by_operators = overrides.numbers(overrides.decode(stored)) if stored else {}
    policy = overrides.read(stored or None, ours)
    rows = [(name, f"{value:.10g}", name in by_operators) for name, value in overrides.table(policy)]
    width = max(len(name) for name, _, _ in rows)
    lines = [f"{name:<{width}}  {value:>8}  {'operators' if theirs else 'default'}" for name, value, theirs in rows]
    return "\n".join([f"version {policy.version}", *lines])
