"""What several commands need: the release a person means, the pointer, a line that says what goes on."""

import argparse
import contextlib
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import redis

from shared_model.errors import ReleaseError, StoreUnavailable
from shared_model.evaluation import judged
from shared_model.redis_store import clients
from shared_model.redis_store.server import RedisServer
from shared_model.releases import manifest, naming, pointer
from shared_model.releases.pointer import Pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings

Found = TypeVar("Found")
Parser = argparse.ArgumentParser
#: Carries out a command; its exit status, where that is not 0.
Run = Callable[[argparse.Namespace, StateSettings], int | None]

#: The release that is meant where a person names none.
ACTIVE = "@active"


@dataclass(frozen=True)
class Moved:
    """The pointer before and after a change. `old`: None where none could be read."""

    old: Pointer | None
    new: Pointer


def store_of(state: StateSettings) -> Store:
    """Every release that is here, signed or not: for building, signing and looking."""
    return Store(state.releases_root)


def add_command(commands: "argparse._SubParsersAction[Any]", name: str, run: Run, **text: str) -> Parser:
    """A command that `run` carries out. `text`: its `help`, an `example` of its arguments and perhaps `more` to read
    with `--help`."""
    words = text["help"]
    parser: Parser = commands.add_parser(
        name,
        help=words,
        description=textwrap.fill(f"{words[0].upper()}{words[1:]}. {text.get('more', '')}"),
        # A wrapped example cannot be copied.
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"example: python -m shared_model {name} {text['example']}",
    )
    parser.set_defaults(run=run)
    return parser


def add_release(parser: Parser, optional: bool = False) -> None:
    """The argument of a command that takes a release; `release_id` reads it."""
    if optional:
        parser.add_argument("release", nargs="?", default=ACTIVE, help=f"{naming.HELP} (default: {ACTIVE})")
    else:
        parser.add_argument("release", help=naming.HELP)


def release_id(state: StateSettings, given: str) -> str:
    """The id of the release a person means; a whole id stands for itself, here or not. Raises: ReleaseError where that
    is none or several."""
    if given.startswith("@"):
        return naming.resolve_role(given, read_pointer(state))
    return given if manifest.is_id(given) else naming.resolve(given, store_of(state).ids())


def open_release(state: StateSettings, given: str) -> Release:
    """The release a person means; signed or not."""
    return store_of(state).open(release_id(state, given))


def read_pointer(state: StateSettings) -> Pointer:
    """Raises: ReleaseError where no release is active."""
    return _with_redis(state, pointer.read)


def find_pointer(state: StateSettings) -> Pointer | None:
    """None where no release was ever active. Raises: ReleaseError where the pointer is damaged."""
    return _with_redis(state, pointer.find)


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
    release = Store.from_settings(state).open(release_id)
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


def known_pointer(state: StateSettings) -> Pointer | None:
    """None also where it is damaged: who only looks goes on."""
    try:
        return find_pointer(state)
    except ReleaseError:
        return None


def role(pointer: Pointer | None, release_id: str) -> str:
    """What the pointer makes of a release: active, previous, canary or nothing."""
    if pointer is None:
        return ""
    return {pointer.previous: "previous", pointer.canary: "canary", pointer.active: "active"}.get(release_id, "")


def mark(pointer: Pointer | None, release_id: str) -> str:
    """As `role`, with the canary's share of the callers."""
    found = role(pointer, release_id)
    return f"canary {pointer.weight:.2%}" if pointer and found == "canary" else found


def _with_redis(state: StateSettings, read: "Callable[[Store, redis.Redis | None], Found]") -> Found:
    """What the pointer's two twins say, or its file alone where Redis cannot be started."""
    store = store_of(state)
    try:
        with redis_client(state) as client:
            return read(store, client)
    except StoreUnavailable:
        return read(store, None)


@contextlib.contextmanager
def redis_client(state: StateSettings) -> Iterator["redis.Redis"]:
    """Raises: StoreUnavailable where a server of our own cannot be started."""
    with (
        RedisServer(state) as server,
        clients.connect(server.url, timeout=5.0, connect_timeout=2.0) as client,
    ):
        yield client


def say(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S}  {line}", flush=True)
