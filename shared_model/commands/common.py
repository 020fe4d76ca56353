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

from shared_model.errors import BadInput, ReleaseError, StoreUnavailable
from shared_model.evaluation import judged
from shared_model.redis_store import clients
from shared_model.redis_store.server import RedisServer
from shared_model.releases import manifest, naming, pointer, pointers, verdict_signature
from shared_model.releases.pointer import Pointer
from shared_model.releases.pointers import Pointers
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
    """A model's pointer before and after a change. `old`: None if it could not be read; `model`: as the functions of
    `pointer` take it; `default`: the default model."""

    old: Pointer | None
    new: Pointer
    model: str
    default: str

    @property
    def note(self) -> str:
        """Suffix of a line, where the pointer of another model than the default one was moved."""
        return f"; model {self.model}, default stays {self.default}" if self.model else ""


#: Returns the model whose pointer a command moves, as the functions of `pointer` take it.
ChooseModel = Callable[[Store, "redis.Redis | None"], str]


def check_count(option: str, count: int) -> None:
    """Raises: BadInput below 1."""
    if count < 1:
        raise BadInput(option, f"is {count}; expected 1 or more")


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
        _, _, model = given.partition(":")
        return naming.resolve_role(given, read_pointer(state, model))
    return given if manifest.is_id(given) else naming.resolve(given, store_of(state).ids())


def open_release(state: StateSettings, given: str) -> Release:
    """Open a release given by its argument, signed or not."""
    return store_of(state).open(release_id(state, given))


def read_pointer(state: StateSettings, model: str = "") -> Pointer:
    """The pointer of a model, by its name; "" is the default one. Raises: ReleaseError if no release is active."""

    def read(store: Store, client: "redis.Redis | None") -> Pointer:
        return pointer.read(store, client, pointers.pointed_by(store, client, model))

    return _with_redis(state, read)


def find_pointers(state: StateSettings) -> Pointers:
    """The pointers of all models. Raises: ReleaseError if one is damaged."""
    return _with_redis(state, pointers.read)


def add_model(parser: Parser, verb: str) -> None:
    """Add the option `--default` to a command that moves the pointer of its release's model."""
    parser.add_argument(
        "--default",
        action="store_true",
        help=f"{verb} the default model, which callers get that name none (default: the model of the release's name)",
    )


def model_of(release_id: str, default: bool) -> ChooseModel:
    """The model of a release; the default one if that is asked for, or no release is active yet."""

    def choose(store: Store, client: "redis.Redis | None") -> str:
        try:
            found = pointer.find(store, client)
        except ReleaseError:
            # Damaged, and about to be replaced.
            return ""
        if default or found is None:
            return ""
        return pointers.pointed_by(store, client, manifest.name_of(release_id))

    return choose


def move(
    state: StateSettings, choose: ChooseModel, change: Callable[[Store, "redis.Redis | None", str], Pointer]
) -> Moved:
    """Change a model's pointer. Raises: StoreUnavailable if its file was written but Redis was not reached."""
    store = store_of(state)
    with contextlib.ExitStack() as stack:
        try:
            client = stack.enter_context(redis_client(state))
        except StoreUnavailable as error:
            model = choose(store, None)
            new = change(store, None, model)
            raise StoreUnavailable(f"{pointer.place(store, model)} names {new.active}, but {error}") from error
        model = choose(store, client)
        try:
            old = pointer.read(store, client, model)
        except ReleaseError:
            # No release is active yet, or both copies are damaged and about to be replaced.
            old = None
        new = change(store, client, model)
        return Moved(old, new, model, manifest.name_of(pointer.read(store, client).active) if model else "")


def promote(state: StateSettings, release_id: str, default: bool = False) -> None:
    """Make a verified and evaluated release the active one of its model, or of the default one, and print the change.
    Raises: ReleaseError if a required signature is missing or wrong; StoreUnavailable."""
    release = Store.from_settings(state).open(release_id)

    def change(store: Store, client: "redis.Redis | None", model: str) -> Pointer:
        if default:
            return pointers.promote_default(store, client, release_id)
        return pointer.promote(store, client, release_id, model)

    moved = move(state, model_of(release_id, default), change)
    replaced = ""
    if moved.old:
        already = moved.old.active == release_id
        replaced = "; it was before" if already else f"; it replaced {moved.old.active}"
    if moved.model:
        replaced += f"; served as model {moved.model}; default stays {moved.default}; --default moves it"
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


def known_pointers(state: StateSettings) -> Pointers:
    """The pointers; none if one is damaged: commands that only read continue."""
    try:
        return find_pointers(state)
    except ReleaseError:
        return Pointers(None)


def mark(found: Pointers, release_id: str) -> str:
    """The roles of a release, for people; empty if no pointer names it."""
    return ", ".join(map(str, found.roles_of(release_id)))


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
