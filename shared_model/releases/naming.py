"""Resolves a release named by an operator: by id, name, a prefix of either, @active, @previous or @canary.

These are the default model's; those of another model are @active:MODEL and so on.
"""

from collections.abc import Sequence

from shared_model.errors import ReleaseError
from shared_model.releases import manifest
from shared_model.releases.pointer import Pointer

#: For the help of every command that takes a release.
HELP = "its id, its name if only one has it, the beginning of either, @active, @previous or @canary (@active:MODEL, …)"

_ROLES = ("active", "previous", "canary")


def resolve_role(given: str, pointer: Pointer) -> str:
    """The id that a model's pointer holds for `@active`, `@previous` or `@canary`. Raises: ReleaseError."""
    role = given.removeprefix("@").partition(":")[0]
    if role not in _ROLES:
        raise ReleaseError(f"{given!r} is not one of {', '.join(f'@{role}' for role in _ROLES)}")
    if not (found := str(getattr(pointer, role))):
        raise ReleaseError(f"{given}: there is no {role} release")
    return found


def resolve(given: str, ids: Sequence[str]) -> str:
    """The one id among `ids` with this name, else the one with this prefix. Raises: ReleaseError for no match or
    several."""
    named = [one for one in ids if manifest.name_of(one) == given]
    found = named or [one for one in ids if given and one.startswith(given)]
    if len(found) > 1:
        raise ReleaseError(f"{given!r} may be {', '.join(found[:-1])} or {found[-1]}; write more of the id")
    if not found:
        raise ReleaseError(f"{given!r} is not a release id, nor the name or beginning of one; `list` shows those here")
    return found[0]
