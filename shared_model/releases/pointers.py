"""The pointers of all models: which releases answer for each, and which model is the default one."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import redis

from shared_model.errors import ReleaseError
from shared_model.releases import manifest, pointer
from shared_model.releases.pointer import Pointer
from shared_model.releases.store import Store


@dataclass(frozen=True)
class Role:
    """`role`: active, previous or canary in the pointer of `model`, "" for the default one; `weight`: the canary's."""

    role: str
    model: str
    weight: float | None = None

    def __str__(self) -> str:
        """For people; of the default model as of the only one."""
        shown = self.role if self.weight is None else f"{self.role} {self.weight:.2%}"
        return f"{shown} of {self.model}" if self.model else shown


@dataclass(frozen=True)
class Pointers:
    """`default`: None if no release was ever active; `others`: by model, without the default one."""

    default: Pointer | None
    others: Mapping[str, Pointer] = field(default_factory=dict)

    @property
    def default_model(self) -> str:
        """The name of the default model, "" without one."""
        return manifest.name_of(self.default.active) if self.default else ""

    def roles_of(self, release_id: str) -> list[Role]:
        """The roles of a release, most important first, each in the default model's pointer first."""
        defaults = {"": self.default} if self.default else {}
        named = {**defaults, **self.others}.items()
        return [
            *(Role("active", model) for model, it in named if it.active == release_id),
            *(Role("canary", model, it.weight) for model, it in named if it.canary == release_id),
            *(Role("previous", model) for model, it in named if it.previous == release_id),
        ]


def read(store: Store, client: "redis.Redis | None") -> Pointers:
    """All pointers. Raises: ReleaseError if one is damaged."""
    default = pointer.find(store, client)
    found = {model: pointer.find(store, client, model) for model in pointer.models(store, client)}
    return Pointers(default, served({model: it for model, it in found.items() if it}, default))


def served(others: Mapping[str, Pointer], default: Pointer | None) -> dict[str, Pointer]:
    """The pointers that count beside the default one: a model that is the default answers by that one alone."""
    name = name_of(default.active) if default else ""
    return {model: it for model, it in others.items() if model != name}


def pointed_by(store: Store, client: "redis.Redis | None", model: str) -> str:
    """The `model` by which functions of `pointer` know a model: "" for the one that is the default now."""
    default = pointer.find(store, client)
    return "" if default is None or name_of(default.active) == model else model


def promote_default(store: Store, client: "redis.Redis | None", release_id: str) -> Pointer:
    """Make a release of any model the active one of the default pointer. The former default model goes on under its
    name. Raises: ReleaseError; StoreUnavailable."""
    old: Pointer | None = None
    with contextlib.suppress(ReleaseError):
        # A damaged one is about to be replaced.
        old = pointer.find(store, client)
    former = name_of(old.active) if old else ""
    if old and former != manifest.name_of(release_id):
        pointer.promote(store, client, old.active, former)
    return pointer.promote(store, client, release_id)


def name_of(release_id: str) -> str:
    """The model of a release, by its id."""
    return release_id.rpartition("-")[0]
