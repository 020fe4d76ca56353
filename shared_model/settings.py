"""One loader: environment variables → a frozen, validated dataclass. Packages declare their settings; none live here
but those that every process needs (where state, releases and Redis are)."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from shared_model.errors import SettingError

PREFIX = "TANDEM_"

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """What values a setting takes; `expected` says it in words."""

    accepts: Callable[[Any], bool]
    expected: str


POSITIVE = Check(lambda value: value > 0, "a number above 0")


def setting(default: Any, help: str, check: Check | None = None) -> Any:
    """Declare one setting: its default, what it means, and what values it takes.

    The environment name is `TANDEM_` plus the field's name in capitals.
    """
    return dataclasses.field(default=default, metadata={"help": help, "check": check})


def env_name(field: dataclasses.Field[Any]) -> str:
    return PREFIX + field.name.upper()


def load(cls: type[T], environ: Mapping[str, str] = os.environ, **overrides: Any) -> T:
    """Build `cls` from the environment; `overrides` (command-line flags) win.

    Raises: SettingError naming the variable, its value and what was expected.
    """
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        raw = overrides.get(field.name)
        if raw is None:
            raw = environ.get(env_name(field))
        if raw is None or raw == "":
            continue
        values[field.name] = _parse(field, hints[field.name], raw)
    return cls(**values)


def _parse(field: dataclasses.Field[Any], kind: type, raw: Any) -> Any:
    check: Check | None = field.metadata.get("check")
    expected = check.expected if check else f"a value of type {kind.__name__}"
    try:
        value = _CASTS.get(kind, kind)(raw)
    except (ValueError, KeyError) as error:
        raise SettingError(f"{env_name(field)}={raw!r}: expected {expected}") from error
    if check and not check.accepts(value):
        raise SettingError(f"{env_name(field)}={raw!r}: expected {expected}")
    return value


def _boolean(raw: str | bool) -> bool:
    if isinstance(raw, bool):
        return raw
    return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[raw.lower()]


_CASTS: dict[type, Callable[[Any], Any]] = {bool: _boolean, Path: lambda raw: Path(raw).absolute()}


@dataclass(frozen=True)
class StateSettings:
    """Where a process finds what it shares with the others."""

    state: Path = setting(Path(".tandem").absolute(), "Folder of all local state.")
    releases: str = setting("", "Releases: a folder, or any URL that fsspec knows; empty means STATE/releases.")
    messages: str = setting("", "Archive of messages, JSON Lines in ds=YYYY-MM-DD folders; empty means STATE/messages.")
    scores: str = setting("", "The scores table (Delta); empty means STATE/scores.")
    trusted_keys: str = setting("", "File of public keys, one of which must have signed a release; empty: none need.")
    redis_url: str = setting("", "Redis; empty means REDIS_URL, else an embedded server in STATE/redis.")

    @property
    def releases_root(self) -> str:
        if "://" in self.releases:
            return self.releases
        return str(Path(self.releases).absolute() if self.releases else self.state / "releases")

    @property
    def messages_dir(self) -> Path:
        return Path(self.messages).absolute() if self.messages else self.state / "messages"

    @property
    def scores_table(self) -> Path:
        return Path(self.scores).absolute() if self.scores else self.state / "scores"

    @property
    def runs_dir(self) -> Path:
        return self.state / "runs"
