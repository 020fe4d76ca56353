"""The versioned pointer to the active release of each model, in Redis and in a file copy for Redis outages.

A model is the name of its releases. Functions take a `model`; "" is the default model, whose pointer may name releases
of any name: that of its active release is the default model's.

    promote ID          active = ID, previous = the former active release, no canary
    canary ID weight    canary = ID for that share of callers
    rollback            drops the canary; without one, active = previous

Versions only grow, and readers take the newer copy, so either copy may be lost or damaged. Where operators have keys, a
copy that none of them signed counts as damaged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import redis

from shared_model.errors import ReleaseError, StoreUnavailable, Untrusted
from shared_model.redis_store import keys
from shared_model.releases import manifest, pointer_file, pointer_signature, settling
from shared_model.releases.files import reason
from shared_model.releases.store import Store
from shared_model.trust import audit, high_water
from shared_model.trust.keyring import WITHOUT_KEYS, Keyring

FILE = pointer_file.FILE
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


def read(store: Store, client: "redis.Redis | None", model: str = "") -> Pointer:
    """The newer of the pointer in Redis and its file copy. Raises: ReleaseError if neither exists or can be read."""
    if found := find(store, client, model):
        return found
    if model:
        raise ReleaseError(f"model {model} has no active release: promote one of its releases")
    raise ReleaseError(f"no release is active in {store.files.root}: run `python -m shared_model build`")


def find(store: Store, client: "redis.Redis | None", model: str = "") -> Pointer | None:
    """As `read`, but None if no release was ever active."""
    settle(store, client)
    found, damage = _newest(store, client, model)
    if damage and not found:
        raise damage
    return found


def promote(store: Store, client: "redis.Redis | None", release_id: str, model: str = "") -> Pointer:
    """Make a release the active one, on every path. Raises: ReleaseError for an invalid id; StoreUnavailable."""
    _check_model(release_id, model)

    def change(old: Pointer | None) -> Pointer:
        if old is None or old.active == release_id:
            return Pointer(0, release_id, old.previous if old else "")
        return Pointer(0, release_id, old.active)

    return _move(store, client, change, "promote", model)


def start_canary(
    store: Store, client: "redis.Redis | None", release_id: str, weight: float, model: str = ""
) -> Pointer:
    """Serve a share of the callers with a release. Raises: ReleaseError; StoreUnavailable."""
    _check_model(release_id, model)
    if not 0 < weight < 1:
        raise ReleaseError(f"weight {weight} is no share of the callers: it lies between 0 and 1; to take all, promote")

    def change(old: Pointer | None) -> Pointer:
        if old is None:
            of_model = f" of model {model}" * bool(model)
            raise ReleaseError(
                f"no release{of_model} is active, so there is nothing to try a canary beside; promote it"
            )
        if old.active == release_id:
            raise ReleaseError(f"release {release_id} is the active one already")
        return replace(old, canary=release_id, weight=weight)

    return _move(store, client, change, "canary", model)


def rollback(store: Store, client: "redis.Redis | None", model: str = "", canary: str = "") -> Pointer:
    """Drop the canary; without one, return to the previous release. `canary`: drop this one, and change
    nothing else. Raises: ReleaseError; StoreUnavailable."""

    def change(old: Pointer | None) -> Pointer:
        if canary and old and old.canary != canary:
            if old.active == canary:
                raise ReleaseError(f"release {canary} is active: it was promoted; nothing was changed")
            # Written again: an earlier try may have reached one copy alone.
            return old
        if old and old.canary:
            return replace(old, canary="", weight=0.0)
        if old is None or not old.previous:
            raise ReleaseError("there is nothing to roll back to; promote the release you want")
        # Not swapped: a second, hasty rollback must not restore the release that was just rolled back.
        return Pointer(0, old.previous)

    return _move(store, client, change, "rollback", model)


def decode(found: Mapping[bytes, bytes], trusted: Keyring = WITHOUT_KEYS, model: str = "") -> Pointer | None:
    """The pointer from the fields of a Redis hash; None for an empty hash. Raises: ReleaseError if it is damaged, no
    operator signed it, or it comes after a later one."""
    if not found:
        return None
    try:
        document = {name.decode(): value.decode() for name, value in found.items()}
        return _verified(document, trusted, model, replayable=True)
    except Untrusted as error:
        raise ReleaseError(f"{keys.release_pointer(model)} in Redis {error}") from error
    except (ValueError, KeyError) as error:
        raise ReleaseError(f"{keys.release_pointer(model)} in Redis is damaged; {_REMEDY}") from error


def script_keys(model: str = "") -> tuple[str, ...]:
    """KEYS of SCRIPT."""
    return keys.release_pointer(model), keys.audit("release"), *([keys.release_models()] if model else [])


def script_arguments(document: Mapping[str, Any], record: Sequence[str], model: str = "") -> list[str]:
    """ARGV of SCRIPT. `document`: a pointer's fields, and its signature if it has one; `record`: see `trust.audit`."""
    names = (*(field.name for field in fields(Pointer)), "signer", "signature")
    return [*(str(document.get(name, "")) for name in names), *record, model]


def models(store: Store, client: "redis.Redis | None") -> list[str]:
    """The models that have a pointer of their own: all that were promoted, but the default one. Raises: ReleaseError if
    neither copy of their names can be read."""
    try:
        stored = None if client is None else {name.decode() for name in client.smembers(keys.release_models())}
    except redis.RedisError:
        # The file copy exists for this case.
        stored = None
    try:
        return sorted({*pointer_file.models(store.files), *(stored or ())})
    except ReleaseError:
        if stored is None:
            raise
        return sorted(stored)


def read_file(store: Store, model: str = "") -> Pointer | None:
    """The pointer in the file; None if it is not there. Raises: ReleaseError if it cannot be read."""
    where = pointer_file.place(store.files, model)
    try:
        return _verified(pointer_file.read(store.files, model), store.keys, model, replayable=False)
    except FileNotFoundError:
        return None
    except Untrusted as error:
        raise ReleaseError(f"{where} {error}") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ReleaseError(f"{where} is damaged; {_REMEDY}") from error
    except OSError as error:
        raise ReleaseError(f"{where} cannot be read: {reason(error)}") from error


def place(store: Store, model: str = "") -> str:
    """The location of the pointer file, for messages."""
    return pointer_file.place(store.files, model)


def _move(
    store: Store, client: "redis.Redis | None", change: Callable[[Pointer | None], Pointer], what: str, model: str
) -> Pointer:
    """Change the pointer exclusively, in Redis and in the file.

    If Redis does not answer, the file is still written: replicas without Redis follow it.
    """
    settle(store, client)
    with store.files.locked():
        unreached: redis.RedisError | None = None
        held = 0
        while True:
            old, _ = _newest(store, client, model)
            # The mark, in case that both copies were lost: replicas refuse a version below it.
            mark = store.keys.accepted.of(high_water.pointer_of(model))
            new = replace(change(old), version=max(held, mark, old.version if old else 0) + 1)
            document = pointer_signature.signed(asdict(new), store.keys, model)
            record = audit.arguments(store.keys, what, _words(old, model), _words(new, model))
            names, arguments = script_keys(model), script_arguments(document, record, model)
            try:
                # Redis refuses a version that is not newer and returns the one it holds: read again, and retry.
                held = int(client.eval(SCRIPT, len(names), *names, *arguments)) if client else 0
            except redis.RedisError as error:
                unreached = error
                break
            if not held:
                break
        try:
            pointer_file.write(store.files, document, model)
        except OSError as error:
            raise ReleaseError(f"{place(store, model)} cannot be written: {reason(error)}") from error
    if unreached:
        problem = f"{place(store, model)} names {new.active}, but Redis was not told: {unreached}"
        raise StoreUnavailable(problem) from unreached
    return new


def _newest(store: Store, client: "redis.Redis | None", model: str) -> tuple[Pointer | None, ReleaseError | None]:
    """The newer copy, and the error of a damaged one, which counts as lost. If both have the same version, the copy in
    Redis wins: all replicas see it."""
    copies: tuple[Callable[[], Pointer | None], ...] = (
        lambda: _from_redis(client, store.keys, model),
        lambda: read_file(store, model),
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


def _from_redis(client: "redis.Redis | None", trusted: Keyring, model: str) -> Pointer | None:
    if client is None:
        return None
    try:
        return decode(client.hgetall(keys.release_pointer(model)), trusted, model)
    except redis.exceptions.MasterDownError:
        # As below: a Redis that follows another one answers, but tells nothing without it.
        return None
    except redis.ResponseError as error:
        raise ReleaseError(f"{keys.release_pointer(model)} in Redis is no pointer ({error}); {_REMEDY}") from error
    except redis.RedisError:
        # The file copy exists for this case.
        return None


def _verified(document: Mapping[str, Any], trusted: Keyring, model: str, replayable: bool) -> Pointer:
    """Raises: Untrusted; ValueError, KeyError for a damaged one."""
    pointer = parse(document, model)
    pointer_signature.check(asdict(pointer), document, trusted, replayable, model)
    return pointer


def settle(store: Store, client: "redis.Redis | None") -> None:
    """Sign what was stored before this machine had an operator key. `read` and all changes do so, too."""
    if store.keys.unsettled:
        settling.settle(store, client, lambda document, model: asdict(parse(document, model)))


def _words(pointer: Pointer | None, model: str) -> str:
    """For the audit."""
    if pointer is None:
        return ""
    of_model = f" of model {model}" * bool(model)
    beside = f", {pointer.canary} for {pointer.weight:.2%}" if pointer.canary else ""
    return f"version {pointer.version}{of_model}: {pointer.active}{beside}"


def parse(document: Mapping[str, Any], model: str = "") -> Pointer:
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
            _check_model(release_id, model)
        except ReleaseError as error:
            raise ValueError(release_id) from error
    return pointer


def _check_model(release_id: str, model: str) -> None:
    """Raises: ReleaseError for an invalid id, or a release of another model."""
    if manifest.name_of(release_id) != model and model:
        raise ReleaseError(f"release {release_id} is of another model than {model}")
