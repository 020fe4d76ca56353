"""list, rm: the releases in the store."""

import argparse
import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from shared_model.commands import common
from shared_model.errors import ReleaseError, UnknownRelease
from shared_model.evaluation import judged
from shared_model.releases import manifest
from shared_model.releases.pointers import Pointers
from shared_model.releases.store import Store
from shared_model.settings import StateSettings


@dataclass(frozen=True)
class Listed:
    """One release in the store. `gate`: passed, REFUSED, not judged, or the release's error. `accuracy`: fp32's on the
    labelled texts of its last gate, `ece`: its expected calibration error there, at the release's `temperature`; all of
    the first head. `heads`: the accuracy of further heads, by name. `role`: active, previous, canary or empty, in the
    pointer of its `model`, which is empty for the default one; `weight`: the canary's."""

    release: str
    name: str
    built: datetime
    bytes: int
    gate: str
    accuracy: float | None
    role: str
    weight: float | None
    temperature: float | None
    ece: float | None
    heads: dict[str, float | None]
    model: str

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "built": self.built.isoformat()}


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    listed = common.add_command(
        commands,
        "list",
        _list,
        help="releases here, oldest first",
        more="With its date (UTC), size, gate, fp32's accuracy and calibration error (ECE) on the last labelled "
        "texts, and what the pointer of its model says.",
        example="--json",
    )
    listed.add_argument("--json", action="store_true", help="a JSON array of them instead, for programs")

    remove = common.add_command(
        commands,
        "rm",
        _remove,
        help="remove a release and all its files",
        more="Never the active one, the previous one or the canary. A nightly run that was planned with it would fail.",
        example="my-model-0123456789ab",
    )
    common.add_release(remove)


def _list(args: argparse.Namespace, state: StateSettings) -> None:
    store, pointers = common.store_of(state), common.known_pointers(state)
    found = [_listed(store, release_id, pointers) for release_id in store.ids()]
    if args.json:
        print(json.dumps([one.to_json() for one in found], indent=1))
        return
    width = max((len(one.release) for one in found), default=0)
    for one in found:
        size, accuracy = f"{one.bytes / 1e6:7.1f} MB", "" if one.accuracy is None else f"accuracy {one.accuracy:7.2%}"
        role = common.mark(pointers, one.release)
        accuracy += "" if one.ece is None else f", ECE {one.ece:.4f}"
        line = f"{one.release:<{width}}  {one.built:%Y-%m-%d %H:%M}  {size}  {one.gate:<10}  {accuracy:16}  {role:14}"
        heads = {name: "–" if accuracy is None else f"{accuracy:.2%}" for name, accuracy in one.heads.items()}
        line += ", ".join(f"{name} {accuracy}" for name, accuracy in heads.items())
        print(line.rstrip())


def _listed(store: Store, release_id: str, pointers: Pointers) -> Listed:
    role, accuracy, temperature, ece = next(iter(pointers.roles_of(release_id)), None), None, None, None
    heads = dict[str, float | None]()
    try:
        release = store.open(release_id)
        temperature, found = release.output.temperature, judged.read(release)
        gate = "not judged" if found is None else "passed" if found.passed else "REFUSED"
        accuracy, ece = (found.accuracy, found.ece) if found else (None, None)
        known = found.accuracies if found else {}
        heads = {spec.name: known.get(spec.name) for spec in release.heads.further}
    except ReleaseError as error:
        gate = str(error)
    return Listed(
        release=release_id,
        name=manifest.name_of(release_id),
        built=store.built(release_id),
        bytes=store.size(release_id),
        gate=gate,
        accuracy=accuracy,
        role=role.role if role else "",
        weight=role.weight if role else None,
        temperature=temperature,
        ece=ece,
        heads=heads,
        model=role.model if role else "",
    )


def _remove(args: argparse.Namespace, state: StateSettings) -> None:
    store = common.store_of(state)
    release_id = common.release_id(state, args.release)
    with store.files.locked():
        # Raises for a damaged pointer, which may name this release.
        for role in common.find_pointers(state).roles_of(release_id):
            model = f" of model {role.model}" * bool(role.model)
            raise ReleaseError(f"release {release_id} stays: it is the {role.role} one{model}; {_REMEDIES[role.role]}")
        if release_id not in store.ids():
            raise UnknownRelease(f"release {release_id} is not in {store.files.root}; nothing was removed")
        freed = store.size(release_id)
        store.remove(release_id)
    print(f"release {release_id} is removed; {freed / 1e6:.1f} MB are free")


_REMEDIES = {
    "active": "promote another first",
    "previous": "`rollback` returns to it; promote another twice, or keep it",
    "canary": "`rollback` drops the canary",
}
