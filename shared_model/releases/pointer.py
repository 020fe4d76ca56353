"""The versioned pointer to the active release, in Redis and in a file copy for Redis outages.

    promote ID          active = ID, previous = the former active release, no canary
    canary ID weight    canary = ID for that share of callers
    rollback            drops the canary; without one, active = previous

Versions only grow, and readers take the newer copy, so either copy may be lost or damaged. Where operators have keys, a
copy that none of them signed counts as damaged.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import redis

from shared_model.errors import ReleaseError, StoreUnavailable, Untrusted
from shared_model.redis_store import keys
from shared_model.releases import manifest, pointer_signature, settling
from shared_model.releases.files import reason
from shared_model.releases.store import Store
from shared_model.trust import audit, high_water
from shared_model.trust.keyring import WITHOUT_KEYS, Keyring

FILE = settling.FILE
#: Moves the pointer in Redis forward: see `script_keys` and `script_arguments`.
SCRIPT = (Path(__file__).parent / "lua" / "move_pointer.lua").read_text()

#: Versions are below this: numbers in Redis' Lua are doubles.
_VERSIONS = 2**53
_REMEDY = "promote a release to write it anew"


@dataclass(frozen=True, order=True)
class Pointer:
    """`previous`: target of a rollback. `weight`: share of callers, 0 to 1, that the canary answers."""

    version: int
    active: str
    previous: str = ""
    canary: str = ""
    weight: float = 0.0


def read(store: Store, client: "redis.Redis | None") -> Pointer:
    """The newer of the pointer in Redis and its file copy. Raises: ReleaseError if neither exists or can be read."""
    if found := find(store, client):
        return found
    raise ReleaseError("no release is active: run `python -m shared_model build`")


def find(store: Store, client: "redis.Redis | None") -> Pointer | None:
    """As `read`, but None if no release was ever active."""
    settle(store, client)
    found, damage = _newest(store, client)
    if damage and not found:
        raise damage
    return found


def promote(store: Store, client: "redis.Redis | None", release_id: str) -> Pointer:
    """Make a release the active one, on every path. Raises: ReleaseError for an invalid id; StoreUnavailable."""
    manifest.name_of(release_id)

    def change(old: Pointer | None) -> Pointer:
        if old is None or old.active == release_id:
            return Pointer(0, release_id, old.previous if old else "")
        return Pointer(0, release_id, old.active)

    return _move(store, client, change, "promote")


def start_canary(store: Store, client: "redis.Redis | None", release_id: str, weight: float) -> Pointer:
    """Serve a share of the callers with a release. Raises: ReleaseError; StoreUnavailable."""
    manifest.name_of(release_id)
    if not 0 < weight < 1:
        raise ReleaseError(f"weight {weight} is no share of the callers: it lies between 0 and 1; to take all, promote")

    def change(old: Pointer | None) -> Pointer:
        if old is None:
            raise ReleaseError("no release is active, so there is nothing to try a canary beside; promote it")
        if old.active == release_id:
            raise ReleaseError(f"release {release_id} is the active one already")
        return replace(old, canary=release_id, weight=weight)

    return _move(store, client, change, "canary")


def rollback(store: Store, client: "redis.Redis | None") -> Pointer:
    """Drop the canary; without one, return to the previous release. Raises: ReleaseError; StoreUnavailable."""

    def change(old: Pointer | None) -> Pointer:
        if old and old.canary:
            return replace(old, canary="", weight=0.0)
        if old is None or not old.previous:
            raise ReleaseError("there is nothing to roll back to; promote the release you want")
        # Not swapped: a second, hasty rollback must not restore the release that was just rolled back.
        return Pointer(0, old.previous)

    return _move(store, client, change, "rollback")


def decode(found: Mapping[bytes, bytes], trusted: Keyring = WITHOUT_KEYS) -> Pointer | None:
    """The pointer from the fields of a Redis hash; None for an empty hash. Raises: ReleaseError if it is damaged, no
    operator signed it, or it comes after a later one."""
    if not found:
        return None
    try:
        document = {name.decode(): value.decode() for name, value in found.items()}
        return _verified(document, trusted, replayable=True)
    except Untrusted as error:
        raise ReleaseError(f"{keys.release_pointer()} in Redis {error}") from error
    except (ValueError, KeyError) as error:
        raise ReleaseError(f"{keys.release_pointer()} in Redis is damaged; {_REMEDY}") from error


def script_keys() -> tuple[str, str]:
    """KEYS of SCRIPT."""
    return keys.release_pointer(), keys.audit("release")


def script_arguments(document: Mapping[str, Any], record: Sequence[str]) -> list[str]:
    """ARGV of SCRIPT. `document`: a pointer's fields, and its signature if it has one; `record`: see `trust.audit`."""
    names = (*(field.name for field in fields(Pointer)), "signer", "signature")
    return [*(str(document.get(name, "")) for name in names), *record]


def read_file(store: Store) -> Pointer | None:
    """The pointer in the file; None if there is no file. Raises: ReleaseError if it cannot be read."""
    try:
        return _verified(json.loads(store.files.read(FILE)), store.keys, replayable=False)
    except FileNotFoundError:
        return None
    except Untrusted as error:
        raise ReleaseError(f"{place(store)} {error}") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ReleaseError(f"{place(store)} is damaged; {_REMEDY}") from error
    except OSError as error:
        raise ReleaseError(f"{place(store)} cannot be read: {reason(error)}") from error


def place(store: Store) -> str:
    """The location of the pointer file, for messages."""
    return f"{store.files.root}/{FILE}"


def _move(
    store: Store, client: "redis.Redis | None", change: Callable[[Pointer | None], Pointer], what: str
) -> Pointer:
    """Change the pointer exclusively, in Redis and in the file.

    If Redis does not answer, the file is still written: replicas without Redis follow it.
    """
    settle(store, client)
    with store.files.locked():
        unreached: redis.RedisError | None = None
        held = 0
        while True:
            old, _ = _newest(store, client)
            # The mark, in case that both copies were lost: replicas refuse a version below it.
            mark = store.keys.accepted.of(high_water.POINTER)
            new = replace(change(old), version=max(held, mark, old.version if old else 0) + 1)
            document = pointer_signature.signed(asdict(new), store.keys)
            arguments = script_arguments(document, audit.arguments(store.keys, what, _words(old), _words(new)))
            try:
                # Redis refuses a version that is not newer and returns the one it holds: read again, and retry.
                held = int(client.eval(SCRIPT, 2, *script_keys(), *arguments)) if client else 0
            except redis.RedisError as error:
                unreached = error
                break
            if not held:
                break
        _write_file(store, document)
    if unreached:
        problem = f"{place(store)} names {new.active}, but Redis was not told: {unreached}"
        raise StoreUnavailable(problem) from unreached
    return new


def _write_file(store: Store, document: Mapping[str, Any]) -> None:
    try:
        store.files.write(FILE, json.dumps(document).encode())
    except OSError as error:
        raise ReleaseError(f"{place(store)} cannot be written: {reason(error)}") from error


def _newest(store: Store, client: "redis.Redis | None") -> tuple[Pointer | None, ReleaseError | None]:
    """The newer copy, and the error of a damaged one, which counts as lost. If both have the same version, the copy in
    Redis wins: all replicas see it."""
    copies: tuple[Callable[[], Pointer | None], ...] = (
        lambda: _from_redis(client, store.keys),
        lambda: read_file(store),
    )
    found: list[Pointer] = []
    damage: ReleaseError | None = None
    for read_copy in copies:
        try:
            pointer = read_copy()
        except ReleaseError as error:
            damage = error
        else:
            found += [pointer] if pointer else []
    return max(found, key=lambda pointer: pointer.version, default=None), damage


def _from_redis(client: "redis.Redis | None", trusted: Keyring) -> Pointer | None:
    if client is None:
        return None
    try:
        return decode(client.hgetall(keys.release_pointer()), trusted)
    except redis.ResponseError as error:
        raise ReleaseError(f"{keys.release_pointer()} in Redis is no pointer ({error}); {_REMEDY}") from error
    except redis.RedisError:
        # The file copy exists for this case.
        return None


def _verified(document: Mapping[str, Any], trusted: Keyring, replayable: bool) -> Pointer:
    """Raises: Untrusted; ValueError, KeyError for a damaged one."""
    pointer = parse(document)
    pointer_signature.check(asdict(pointer), document, trusted, replayable)
    return pointer


def settle(store: Store, client: "redis.Redis | None") -> None:
    """Sign what was stored before this machine had an operator key. `read` and all changes do so, too."""
    if store.keys.unsettled:
        settling.settle(store, client, lambda document: asdict(parse(document)))


def _words(pointer: Pointer | None) -> str:
    """For the audit."""
    if pointer is None:
        return ""
    beside = f", {pointer.canary} for {pointer.weight:.2%}" if pointer.canary else ""
    return f"version {pointer.version}: {pointer.active}{beside}"


def parse(document: Mapping[str, Any]) -> Pointer:
    """Raises: ValueError, KeyError for a damaged one."""
    pointer = Pointer(
        version=int(document["version"]),
        active=str(document["active"]),
        previous=str(document.get("previous", "")),
        canary=str(document.get("canary", "")),
        weight=float(document.get("weight", 0.0)),
    )
    sound = 0 <= pointer.version < _VERSIONS and 0 <= pointer.weight < 1 and pointer.active
    if not sound or bool(pointer.canary) != bool(pointer.weight):
        raise ValueError(document)
    for release_id in filter(None, (pointer.active, pointer.previous, pointer.canary)):
        try:
            manifest.name_of(release_id)
        except ReleaseError as error:
            raise ValueError(release_id) from error
    return pointer
