"""promote, canary, rollback: set the active release of a model."""

import argparse
from typing import Any

import redis

from shared_model.commands import await_replicas, common, roles
from shared_model.evaluation import judged, report
from shared_model.releases import manifest, pointer, pointers
from shared_model.releases.pointer import Pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    promote = common.add_command(
        commands,
        "promote",
        _promote,
        help="make a release that passed its gate the active one",
        more="Running replicas follow within a minute; the next nightly run is planned with it. A release of another "
        "name than the default model's is served beside it, as the model of that name.",
        example="my-model",
    )
    common.add_release(promote)
    common.add_model(promote, "make it")
    promote.add_argument(
        "--canary", action="store_true", help="only if it is a canary, and of the model whose canary it is"
    )
    await_replicas.add_to(promote)

    canary = common.add_command(
        commands,
        "canary",
        _canary,
        help="let a release that passed its gate answer a share of the callers",
        more="The same callers each time. `promote` gives it all of them, `rollback` none.",
        example="my-model --weight 0.05",
    )
    common.add_release(canary)
    common.add_model(canary, "try it beside")
    canary.add_argument("--weight", type=float, required=True, help="share of the callers, between 0 and 1")
    await_replicas.add_to(canary)

    rollback = common.add_command(
        commands,
        "rollback",
        _rollback,
        help="drop the canary; without one, return to the previous release",
        more="It is done once: a second rollback does not bring back what the first one took away.",
        example="",
    )
    rollback.add_argument("--model", default="", metavar="NAME", help="that of a model (default: the default model)")
    rollback.add_argument(
        "--canary",
        default="",
        metavar="RELEASE",
        help="drop this canary, whichever model's it is, and nothing else (default: as above)",
    )
    await_replicas.add_to(rollback)


def _promote(args: argparse.Namespace, state: StateSettings) -> int:
    release = _verified(state, common.release_id(state, args.release))
    if refusal := _refusal(release, state):
        print(refusal)
        return 1
    default = args.default
    if args.canary:
        default = not roles.model_of(state, release.id, "canary", "active")
    common.promote(state, release.id, default)
    return await_replicas.follow(args, state, common.model_of(release.id, default))


def _canary(args: argparse.Namespace, state: StateSettings) -> int:
    release = _verified(state, common.release_id(state, args.release))
    if refusal := _refusal(release, state):
        print(refusal)
        return 1

    def change(store: Store, client: "redis.Redis | None", model: str) -> Pointer:
        return pointer.start_canary(store, client, release.id, args.weight, model)

    choose = common.model_of(release.id, args.default)
    moved = common.move(state, choose, change)
    new = moved.new
    print(
        f"release {new.canary} answers {new.weight:.2%} of the callers (version {new.version}), "
        f"{new.active} the others{moved.note}{common.unproven(release)}"
    )
    return await_replicas.follow(args, state, choose)


def _rollback(args: argparse.Namespace, state: StateSettings) -> int:
    canary = common.release_id(state, args.canary) if args.canary else ""

    def choose(store: Store, client: "redis.Redis | None") -> str:
        if not canary:
            return pointers.pointed_by(store, client, args.model)
        found = pointers.read(store, client)
        if role := roles.find(found, canary, "canary"):
            return role.model
        name = manifest.name_of(canary)
        return name if name in found.others else ""

    def change(store: Store, client: "redis.Redis | None", model: str) -> Pointer:
        old = pointer.read(store, client, model)
        if old.previous and not old.canary and not canary:
            _verified(state, old.previous)
        return pointer.rollback(store, client, model, canary)

    moved = common.move(state, choose, change)
    undone = ""
    if moved.old and moved.old.canary != moved.new.canary:
        undone = f"; the canary {moved.old.canary} was dropped"
    elif moved.old and not canary:
        undone = f"; it replaced {moved.old.active}"
    print(f"release {moved.new.active} is active (version {moved.new.version}){undone}{moved.note}")
    return await_replicas.follow(args, state, choose)


def _verified(state: StateSettings, release_id: str) -> Release:
    release = Store.from_settings(state).open(release_id)
    release.verify()
    return release


def _refusal(release: Release, state: StateSettings) -> str:
    """One line with the reason why a release may take no traffic; empty if it may: all its variants passed, or all that
    the lanes of the known replicas run. Raises: StoreUnavailable if those would decide and Redis does not answer."""
    found = judged.read_signed(release)
    if found is None:
        return f"release {release.id} was not judged; run `python -m shared_model gate --release {release.id}`"
    if not found.passed:
        with common.redis_client(state) as client:
            # The variants that the lanes of the known replicas run; empty if no replica says.
            needed = {variant for it in await_replicas.read(client) for variant in it.variants.values()}
        failures = found.unfit(needed) if needed else found.failures
        if needed and not failures:
            return ""
        why = "; ".join(failures) or "its report gives no reason"
        see = f"see {release.place}/{report.MARKDOWN}{common.unproven(release)}"
        return f"release {release.id} did not pass its gate: {why}; {see}"
    return ""
