"""Finds the model in whose pointer a release has a role, for commands that go on with a canary."""

from shared_model.commands import common
from shared_model.errors import ReleaseError
from shared_model.releases.pointers import Pointers, Role
from shared_model.settings import StateSettings


def find(found: Pointers, release_id: str, *roles: str) -> Role | None:
    """The role of a release, the first of these that it has."""
    has = found.roles_of(release_id)
    return next((it for role in roles for it in has if it.role == role), None)


def model_of(state: StateSettings, release_id: str, *roles: str) -> str:
    """The model in whose pointer it has one of these roles, as the functions of `pointer` take it. Raises: ReleaseError
    where it has none of them."""
    found = common.find_pointers(state)
    if role := find(found, release_id, *roles):
        return role.model
    now = common.mark(found, release_id) or "named by no pointer"
    raise ReleaseError(f"release {release_id} is no canary: it is {now}; nothing was changed")
