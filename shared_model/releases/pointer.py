"""Which release is active: one versioned pointer in Redis, with a file twin for when Redis is down."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import redis

from shared_model import keys
from shared_model.errors import ReleaseError, StoreUnavailable
from shared_model.releases import manifest

FILE = "ACTIVE.json"

_REMEDY = "promote a release to write it anew"


@dataclass(frozen=True, order=True)
class Pointer:
    version: int
    active: str


def get_active(root: Path, client: "redis.Redis | None") -> Pointer:
    """The newer of the pointer in Redis and its file twin. Raises: ReleaseError if neither is set."""
    found = [p for p in (_from_file(root), _from_redis(client)) if p]
    if not found:
        raise ReleaseError("no release is active: run `python -m shared_model build`")
    return max(found)


def set_active(root: Path, client: "redis.Redis | None", release_id: str) -> Pointer:
    """Point every path at a release, in Redis where it answers and in the file always.

    Whoever writes last wins: promotion is a person's act, and the version tells readers which came later.
    """
    manifest.name_of(release_id)
    newest = max(_version(lambda: _from_file(root)), _version(lambda: _from_redis(client)))
    pointer = Pointer(newest + 1, release_id)
    temporary = root / f".{FILE}.{os.getpid()}"
    temporary.write_text(json.dumps({"version": pointer.version, "active": pointer.active}))
    temporary.replace(root / FILE)
    if client:
        try:
            client.hset(keys.release_pointer(), mapping={"version": pointer.version, "active": pointer.active})
        except redis.RedisError as error:
            raise StoreUnavailable(f"{root / FILE} names {release_id}, but Redis was not told: {error}") from error
    return pointer


def decode(fields: dict[bytes, bytes]) -> Pointer | None:
    """The pointer from a Redis hash's fields; None where there is none. Raises: ReleaseError if it is damaged."""
    if not fields:
        return None
    try:
        return Pointer(int(fields[b"version"]), fields[b"active"].decode())
    except (ValueError, KeyError) as error:
        raise ReleaseError(f"{keys.release_pointer()} in Redis is damaged; {_REMEDY}") from error


def _version(read: Callable[[], Pointer | None]) -> int:
    """0 where there is no pointer, or a damaged one that is about to be written anew."""
    try:
        found = read()
    except ReleaseError:
        return 0
    return found.version if found else 0


def _from_redis(client: "redis.Redis | None") -> Pointer | None:
    if client is None:
        return None
    try:
        return decode(client.hgetall(keys.release_pointer()))
    except redis.RedisError:
        # The file twin exists for exactly this.
        return None


def _from_file(root: Path) -> Pointer | None:
    try:
        document = json.loads((root / FILE).read_text())
        return Pointer(int(document["version"]), str(document["active"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ReleaseError(f"{root / FILE} is damaged; {_REMEDY}") from error
