"""What several commands need: the release a person means, the pointer, a line that says what goes on."""

import argparse
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import redis

from shared_model import redis_clients
from shared_model.errors import ReleaseError, StoreUnavailable
from shared_model.redis_server import RedisServer
from shared_model.releases import judged, pointer
from shared_model.releases.pointer import Pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings


@dataclass(frozen=True)
class Moved:
    """The pointer before and after a change. `old`: None where none could be read."""

    old: Pointer | None
    new: Pointer


def store_of(state: StateSettings) -> Store:
    """Every release that is here, signed or not: for building, signing and looking."""
    return Store(state.releases_root)


def open_release(args: argparse.Namespace, state: StateSettings) -> Release:
    """The release a person named, else the active one; signed or not."""
    return store_of(state).open(args.release or read_pointer(state).active)


def read_pointer(state: StateSettings) -> Pointer:
    """Raises: ReleaseError where no release is active."""
    store = store_of(state)
    try:
        with redis_client(state) as client:
            return pointer.read(store, client)
    except StoreUnavailable:
        return pointer.read(store, None)


def move(state: StateSettings, change: Callable[[Store, "redis.Redis | None"], Pointer]) -> Moved:
    """Change the pointer. Raises: StoreUnavailable where its file was moved and Redis could not be told."""
    store = store_of(state)
    with contextlib.ExitStack() as stack:
        try:
            client = stack.enter_context(redis_client(state))
        except StoreUnavailable as error:
            new = change(store, None)
            raise StoreUnavailable(f"{pointer.place(store)} names {new.active}, but {error}") from error
        try:
            old = pointer.read(store, client)
        except ReleaseError:
            # None is active yet, or both twins are damaged and about to be written anew.
            old = None
        return Moved(old, change(store, client))


def promote(state: StateSettings, release_id: str) -> None:
    """Make a release that was verified and judged the active one, and say so. Raises: ReleaseError where its signature
    is asked for and wrong; StoreUnavailable."""
    release = Store.of(state).open(release_id)
    moved = move(state, lambda store, client: pointer.promote(store, client, release_id))
    replaced = ""
    if moved.old:
        already = moved.old.active == release_id
        replaced = "; it was before" if already else f"; it replaced {moved.old.active}"
    print(f"release {release_id} is active (version {moved.new.version}){replaced}{unproven(release)}")


def unproven(release: Release) -> str:
    """The end of a line that says which variants nobody has judged yet; empty if all were."""
    found = judged.read(release)
    if found is None or not found.unproven:
        return ""
    return f"; unproven until a replica has the device: {', '.join(found.unproven)}"


@contextlib.contextmanager
def redis_client(state: StateSettings) -> Iterator["redis.Redis"]:
    """Raises: StoreUnavailable where a server of our own cannot be started."""
    with (
        RedisServer(state) as server,
        redis_clients.connect(server.url, timeout=5.0, connect_timeout=2.0) as client,
    ):
        yield client


def say(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S}  {line}", flush=True)
