"""Loads environment variables into frozen, validated dataclasses. Packages declare their own settings; those that every
process needs (locations of state, releases and Redis) are declared here.

A TOML file may hold settings that the environment lacks: `read_file` turns it into variables of the same names.
"""

import dataclasses
import math
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from shared_model.errors import SettingError
from shared_model.objects import Location, is_url, join, located, refusal
from shared_model.storage import without_user

PREFIX = "TANDEM_"
#: The variable that names a file of settings.
CONFIG = "TANDEM_CONFIG"

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """Validates a setting; `expected` describes the accepted values."""

    accepts: Callable[[Any], bool]
    expected: str


POSITIVE = Check(lambda value: 0 < value < math.inf, "a number above 0")
NOT_NEGATIVE = Check(lambda value: value >= 0, "0 or more")


def setting(default: Any, help: str, check: Check | None = None) -> Any:
    """Declare one setting: its default, description and accepted values.

    The environment name is `TANDEM_` plus the field's name in capitals.
    """
    return dataclasses.field(default=default, metadata={"help": help, "check": check})


def group(default: Any) -> Any:
    """Declare a group of settings: an instance of another settings class, which holds the defaults.

    Their environment names include this field's name: `latency` and `max_rows` give `TANDEM_LATENCY_MAX_ROWS`.
    """
    return dataclasses.field(default=default, metadata={"group": type(default)})


def env_name(field: dataclasses.Field[Any], prefix: str = PREFIX) -> str:
    return prefix + field.name.upper()


def names(cls: type, prefix: str = PREFIX) -> Iterator[str]:
    """The environment names of a class's settings, those of its groups included."""
    for field in dataclasses.fields(cls):
        if grouped := field.metadata.get("group"):
            yield from names(grouped, f"{env_name(field, prefix)}_")
        elif "help" in field.metadata:
            yield env_name(field, prefix)


def load(cls: type[T], environ: Mapping[str, str] = os.environ, **overrides: Any) -> T:
    """Build `cls` from the environment; `overrides` (command-line flags) have precedence.

    Raises: SettingError naming the variable, its value and the accepted values.
    """
    return _replace(cls(), environ, overrides, PREFIX)


def _replace(defaults: T, environ: Mapping[str, str], overrides: Mapping[str, Any], prefix: str) -> T:
    hints = get_type_hints(type(defaults))
    values: dict[str, Any] = {}
    for field in dataclasses.fields(defaults):  # type: ignore[arg-type]
        name = env_name(field, prefix)
        if "group" in field.metadata:
            values[field.name] = _replace(getattr(defaults, field.name), environ, {}, f"{name}_")
            continue
        raw = overrides.get(field.name)
        if raw is None:
            raw = environ.get(name)
        if raw is None or raw == "":
            continue
        kind, check = hints[field.name], field.metadata.get("check")
        try:
            value = _CASTS.get(kind, kind)(raw)
            if check and not check.accepts(value):
                raise ValueError(value)
        except (ValueError, KeyError):
            expected = check.expected if check else f"a value of type {kind.__name__}"
            # A URL may hold a password.
            shown = without_user(raw) if isinstance(raw, str) else raw
            raise SettingError(f"{name}={shown!r}: expected {expected}") from None
        values[field.name] = value
    return dataclasses.replace(defaults, **values)  # type: ignore[type-var]


def read_file(path: Path, *known: type) -> dict[str, str]:
    """A TOML file as environment variables: `max_rows` in the table `[latency]` is `TANDEM_LATENCY_MAX_ROWS`.

    `known`: the classes whose settings may be in it. Raises: SettingError naming the file and the problem.
    """
    try:
        written = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"{CONFIG}={str(path)!r}: cannot be read: {error}") from error
    variables = dict(_flat(written, PREFIX))
    if strangers := sorted(variables.keys() - {name for cls in known for name in names(cls)}):
        raise SettingError(f"{CONFIG}={str(path)!r}: it sets {strangers[0]}, and there is no such setting")
    return variables


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        name = prefix + key.upper()
        if isinstance(value, dict):
            yield from _flat(value, f"{name}_")
        else:
            yield name, ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _folder(raw: str | Path) -> Path:
    """Raises: ValueError for a URL, which would become a relative folder otherwise."""
    if is_url(raw):
        raise ValueError
    return Path(raw).absolute()


_BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_CASTS: dict[type, Callable[[Any], Any]] = {bool: lambda raw: _BOOLEANS[str(raw).lower()], Path: _folder}

#: A folder, or a URL that can be served.
_PLACE = Check(lambda place: not refusal(place), "a folder or a URL (s3://, gs://, az://) without credentials")
_LOCAL = "a local folder; TANDEM_STORE names a URL for all that machines share"


@dataclass(frozen=True)
class StateSettings:
    """Locations of the state that processes share."""

    state: Path = setting(Path(".tandem").absolute(), "Folder of all local state.", Check(lambda _: True, _LOCAL))
    store: str = setting(
        "",
        "Folder or URL (s3://, gs://, az://) of all that machines share: messages, releases, tables, records; empty "
        "means STATE.",
        _PLACE,
    )
    releases: str = setting("", "Releases: a folder or a URL; empty means STORE/releases.")
    messages: str = setting(
        "", "Archive of messages, in ds=YYYY-MM-DD folders: a folder or a URL; empty means STORE/messages.", _PLACE
    )
    scores: str = setting(
        "",
        "The scores table (Delta): a folder or a URL; empty means STORE/scores, or a folder in STORE/inputs.",
        _PLACE,
    )
    trusted_keys: str = setting("", "File of public keys, one of which must have signed a release; empty: none need.")
    revoked: str = setting("", "Release ids, by comma, or a file of them: they are neither loaded nor promoted.")
    keys: str = setting("", "Folder of the keys of cluster and operators; empty means STATE/keys.")
    unsigned: str = setting(
        "",
        "accept: heartbeats, pointer and policy without a signature count, for the time of an upgrade.",
        Check(lambda value: value == "accept", "accept, or nothing"),
    )
    redis_url: str = setting("", "Redis; empty means REDIS_URL, else an embedded server in STATE/redis.")
    redis_ca: str = setting(
        "", "PEM file of authorities for the certificates of Redis and Sentinels; empty: the system's."
    )
    redis_cert: str = setting("", "PEM file of a certificate to show to them; needs TANDEM_REDIS_KEY.")
    redis_key: str = setting("", "PEM file of its key.")
    redis_fsync: str = setting(
        "everysec",
        "When the embedded Redis has what it stores on disk: within a second, or always before it says so.",
        Check(lambda value: value in {"everysec", "always"}, "everysec or always"),
    )

    @property
    def store_root(self) -> Location:
        return located(self.store) if self.store else self.state

    @property
    def releases_root(self) -> str:
        return str(self._shared(self.releases, "releases"))

    @property
    def keys_dir(self) -> Path:
        return Path(self.keys).absolute() if self.keys else self.state / "keys"

    @property
    def messages_dir(self) -> Location:
        return self._shared(self.messages, "messages")

    @property
    def scores_table(self) -> Location:
        return self._shared(self.scores, "scores")

    @property
    def quarantine_table(self) -> Location:
        return self._shared("", "quarantine")

    @property
    def runs_dir(self) -> Location:
        return self._shared("", "runs")

    def _shared(self, named: str, name: str) -> Location:
        return located(named) if named else join(self.store_root, name)


@dataclass(frozen=True)
class DeferredSettings:
    """Limits and durability of deferred work."""

    deferred_bound: int = setting(1_000_000, "Unfinished requests that are stored before more are refused.", POSITIVE)
    deferred_wait_seconds: int = setting(7 * 24 * 3600, "How long an unfinished request is kept.", POSITIVE)
    deferred_keep_seconds: int = setting(7 * 24 * 3600, "How long the end of a request, its result, is kept.", POSITIVE)
    redis_replicas: int = setting(
        0, "Replicas of Redis that must have a request before it is acknowledged.", NOT_NEGATIVE
    )
    redis_replicas_ms: int = setting(
        100, "Longest wait for them; a call to Redis may take a second.", Check(lambda n: 0 < n < 1000, "1 to 999")
    )
