"""The next step of a rollout towards a pointer: a pure decision."""

from collections.abc import Collection
from dataclasses import dataclass

from realtime_service.errors import Unfit
from shared_model.releases.pointer import Pointer


@dataclass(frozen=True)
class Step:
    """The releases that answer from now on, the one to load next, and the one to keep loaded without answering ("" for
    no release). All other loaded releases retire."""

    active: str
    canary: str
    weight: float
    load: str
    keep: str = ""


@dataclass(frozen=True)
class Failure:
    """The reason why a release is not served. Each new `version` of its model's pointer tries again; `model` is "" for
    the default one."""

    version: int
    how: Unfit
    why: str
    model: str = ""


def plan(
    pointer: Pointer, loaded: Collection[str], active: str, failed: Collection[str], expired: Collection[str] = ()
) -> Step:
    """The next step towards `pointer`. `active`: the release that answers here; `expired`: releases that were kept for
    long enough.

    A release takes traffic only once it is loaded, and the one that answers stays until another replaces it. The
    release that a rollback would return to is kept, but retires before another one is loaded.
    """
    now = pointer.active if pointer.active in loaded else active
    canary = pointer.canary if pointer.canary in loaded and pointer.canary != now else ""
    missing = [it for it in (pointer.active, pointer.canary) if it and it not in loaded and it not in failed]
    previous = pointer.previous
    kept = previous in loaded and previous not in (now, canary, *expired) and not missing
    weight = pointer.weight if canary else 0.0
    return Step(now, canary, weight, missing[0] if missing else "", previous if kept else "")
