"""Helpers shared by commands: resolving releases, reading and moving the pointer, printing progress."""

import argparse
import contextlib
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import redis

from shared_model.errors import ReleaseError, StoreUnavailable
from shared_model.evaluation import judged
from shared_model.redis_store import clients
from shared_model.redis_store.server import RedisServer
from shared_model.releases import manifest, naming, pointer, verdict_signature
from shared_model.releases.pointer import Pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from shared_model.trust import keyring

Found = TypeVar("Found")
Parser = argparse.ArgumentParser
#: Runs a command and returns its exit status; None means 0.
Run = Callable[[argparse.Namespace, StateSettings], int | None]

#: Help on the format of a CSV of examples.
CSV_HELP = "a header line names the columns, such as utterance,intent"
#: The default release of a command.
ACTIVE = "@active"


@dataclass(frozen=True)
class Moved:
    """The pointer before and after a change. `old`: None if it could not be read."""

    old: Pointer | None
    new: Pointer


def store_of(state: StateSettings) -> Store:
    """The store without signature checks: for building, signing and inspecting releases."""
    return Store(state.releases_root, load_keys=partial(keyring.load, state))


def add_command(commands: "argparse._SubParsersAction[Any]", name: str, run: Run, **text: str) -> Parser:
    """Add a command that calls `run`. `text`: its `help`, an `example` of its arguments and optionally `more` for
    `--help`."""
    words = text["help"]
    parser: Parser = commands.add_parser(
        name,
        help=words,
        description=textwrap.fill(f"{words[0].upper()}{words[1:]}. {text.get('more', '')}"),
        # Raw: a wrapped example could not be copied.
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"example: python -m shared_model {name} {text['example']}",
    )
    parser.set_defaults(run=run)
    return parser


def add_release(parser: Parser, optional: bool = False) -> None:
    """Add a release argument to a command; `release_id` resolves it."""
    if optional:
        parser.add_argument("release", nargs="?", default=ACTIVE, help=f"{naming.HELP} (default: {ACTIVE})")
    else:
        parser.add_argument("release", help=naming.HELP)


def release_id(state: StateSettings, given: str) -> str:
    """Resolve a release argument; a full id is returned as it is, even if the release is not here. Raises: ReleaseError
    if it matches no release or several."""
    if given.startswith("@"):
        return naming.resolve_role(given, read_pointer(state))
    return given if manifest.is_id(given) else naming.resolve(given, store_of(state).ids())


def open_release(state: StateSettings, given: str) -> Release:
    """Open a release given by its argument, signed or not."""
    return store_of(state).open(release_id(state, given))


def read_pointer(state: StateSettings) -> Pointer:
    """The pointer. Raises: ReleaseError if no release is active."""
    return _with_redis(state, pointer.read)


def find_pointer(state: StateSettings) -> Pointer | None:
    """The pointer; None if no release was ever active. Raises: ReleaseError if it is damaged."""
    return _with_redis(state, pointer.find)


def move(state: StateSettings, change: Callable[[Store, "redis.Redis | None"], Pointer]) -> Moved:
    """Change the pointer. Raises: StoreUnavailable if its file was written but Redis was not reached."""
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
            # No release is active yet, or both copies are damaged and about to be replaced.
            old = None
        return Moved(old, change(store, client))


def promote(state: StateSettings, release_id: str) -> None:
    """Make a verified and evaluated release the active one, and print the change. Raises: ReleaseError if a required
    signature is missing or wrong; StoreUnavailable."""
    release = Store.from_settings(state).open(release_id)
    moved = move(state, lambda store, client: pointer.promote(store, client, release_id))
    replaced = ""
    if moved.old:
        already = moved.old.active == release_id
        replaced = "; it was before" if already else f"; it replaced {moved.old.active}"
    print(f"release {release_id} is active (version {moved.new.version}){replaced}{unproven(release)}")


def unproven(release: Release) -> str:
    """Suffix of a line that names the variants without a verdict; empty if all have one."""
    found = judged.read(release)
    if found is None or not found.unproven:
        return ""
    return f"; unproven until a replica has the device: {', '.join(found.unproven)}"


def sign_verdict(state: StateSettings, release: Release) -> None:
    """Sign the verdict of a gate that ran just now, where an operator's key is. Raises: SettingError; OSError."""
    keys = keyring.load(state)
    if keys.operator:
        verdict_signature.sign(release, keys.operator, str(keys.folder / keyring.OPERATOR))


def known_pointer(state: StateSettings) -> Pointer | None:
    """The pointer; None also if it is damaged: commands that only read continue."""
    try:
        return find_pointer(state)
    except ReleaseError:
        return None


def role(pointer: Pointer | None, release_id: str) -> str:
    """The role of a release in the pointer: active, previous, canary or an empty string."""
    if pointer is None:
        return ""
    return {pointer.previous: "previous", pointer.canary: "canary", pointer.active: "active"}.get(release_id, "")


def mark(pointer: Pointer | None, release_id: str) -> str:
    """As `role`, plus the canary's share of callers."""
    found = role(pointer, release_id)
    return f"canary {pointer.weight:.2%}" if pointer and found == "canary" else found


def _with_redis(state: StateSettings, read: "Callable[[Store, redis.Redis | None], Found]") -> Found:
    """Read the pointer from Redis and its file, or from the file alone if Redis cannot be started."""
    store = store_of(state)
    try:
        with redis_client(state) as client:
            return read(store, client)
    except StoreUnavailable:
        return read(store, None)


@contextlib.contextmanager
def redis_client(state: StateSettings) -> Iterator["redis.Redis"]:
    """Raises: StoreUnavailable if the embedded server cannot be started."""
    with (
        RedisServer(state) as server,
        clients.connect(server.url, timeout=5.0, connect_timeout=2.0) as client,
    ):
        yield client


def say(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S}  {line}", flush=True)
