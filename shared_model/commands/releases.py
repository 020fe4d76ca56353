"""list, show, verify, diff: look at releases."""

import argparse
from collections.abc import Iterator
from typing import Any

from shared_model.commands import common
from shared_model.errors import ReleaseError
from shared_model.output import Output
from shared_model.releases import diff, judged, signature
from shared_model.releases.judged import Judged, Measured
from shared_model.releases.pointer import Pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings

_LABELS_SHOWN = 5


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    commands.add_parser("list", help="releases here, oldest first").set_defaults(run=_list)

    show = commands.add_parser("show", help="what a release is, and what its gate measured")
    show.set_defaults(run=_show)
    show.add_argument("release", nargs="?", help="default: the active release")
    show.add_argument("--json", action="store_true", help="its manifest instead")

    verify = commands.add_parser("verify", help="check every file's hash, and the signature if one is asked for")
    verify.set_defaults(run=_verify)
    verify.add_argument("release", nargs="?", help="default: the active release")

    compare = commands.add_parser("diff", help="what differs between two releases")
    compare.set_defaults(run=_diff)
    compare.add_argument("old")
    compare.add_argument("new")


def _list(args: argparse.Namespace, state: StateSettings) -> None:
    pointer, store = _pointer(state), common.store_of(state)
    for release_id in store.ids():
        print("  ".join(filter(None, (release_id, _gate_in_short(store, release_id), _mark(pointer, release_id)))))


def _show(args: argparse.Namespace, state: StateSettings) -> None:
    release = common.open_release(args, state)
    if args.json:
        print(release.manifest.to_json().decode(), end="")
        return
    for subject, words in _summary(release, _pointer(state), signature.trusted_keys(state)):
        print(f"{subject:<13} {words}")


def _verify(args: argparse.Namespace, state: StateSettings) -> None:
    release = Store.of(state).open(args.release or common.read_pointer(state).active)
    release.verify()
    signed = "" if signature.trusted_keys(state) is None else ", signed by a trusted key"
    print(f"release {release.id}: {len(release.manifest.files)} files, every one as built{signed}")


def _diff(args: argparse.Namespace, state: StateSettings) -> None:
    store = common.store_of(state)
    found = diff.differences(store.open(args.old), store.open(args.new))
    for difference in found:
        print(f"{difference.subject:<13} {difference.words}")
    if not found:
        print("nothing differs")


def _pointer(state: StateSettings) -> Pointer | None:
    """None where no release is active, or where what says so is damaged: looking goes on."""
    try:
        return common.read_pointer(state)
    except ReleaseError:
        return None


def _gate_in_short(store: Store, release_id: str) -> str:
    try:
        found = judged.read(store.open(release_id))
    except ReleaseError as error:
        return str(error)
    if found is None:
        return "not judged"
    return "passed" if found.passed else "REFUSED"


def _mark(pointer: Pointer | None, release_id: str) -> str:
    """What the pointer makes of a release."""
    if pointer is None:
        return ""
    marks = {pointer.previous: "previous", pointer.canary: f"canary {pointer.weight:.2%}", pointer.active: "active"}
    return marks.get(release_id, "")


def _summary(
    release: Release, pointer: Pointer | None, trusted: signature.TrustedKeys | None
) -> Iterator[tuple[str, str]]:
    manifest = release.manifest
    found, gate = _gate(release)
    yield "release", "  ".join(filter(None, (release.id, _mark(pointer, release.id))))
    yield "place", release.place
    yield "parent", f"sha256 {manifest.parent}"
    yield "output", _output(release.output)
    what = "pairs of texts" if manifest.reads.pairs else "texts"
    yield "reads", f"{what} of at most {manifest.reads.max_tokens} tokens"
    yield "quantisation", f"{manifest.quantisation}; calibration sha256 {manifest.calibration}"
    yield "gate", gate
    yield "signature", _signature(release, trusted)
    for variant in manifest.variants:
        measured = found.variants.get(str(variant)) if found else None
        yield str(variant), f"{release.size(variant) / 1e6:.1f} MB{_measured(measured)}"


def _output(output: Output) -> str:
    if not output.names:
        return f"{output.kind}, {output.width} numbers"
    shown = ", ".join(output.names[:_LABELS_SHOWN]) + (", …" if output.width > _LABELS_SHOWN else "")
    return f"{output.kind}, {output.width}: {shown}"


def _gate(release: Release) -> tuple[Judged | None, str]:
    """What the report says, and what to say of it."""
    try:
        found = judged.read(release)
    except ReleaseError as error:
        return None, str(error)
    if found is None:
        return None, "not judged"
    unproven = f"; unproven: {', '.join(found.unproven)}" if found.unproven else ""
    return found, f"passed{unproven}" if found.passed else f"REFUSED: {'; '.join(found.failures)}{unproven}"


def _measured(measured: Measured | None) -> str:
    if measured is None:
        return ", not measured here"
    agreement = "" if measured.agreement is None else f", agreement {measured.agreement:.2%}"
    clear = "" if measured.clear_agreement is None else f" ({measured.clear_agreement:.2%} where fp32 is sure)"
    accuracy = "" if measured.accuracy is None else f", accuracy {measured.accuracy:.2%}"
    return f", compiled as {measured.compiled}{agreement}{clear}{accuracy}"


def _signature(release: Release, trusted: signature.TrustedKeys | None) -> str:
    try:
        note = release.read_note(signature.NOTE)
        if trusted is not None:
            return f"by {signature.check(release.manifest, note, trusted)}, which is trusted"
        signers = ", ".join(signature.signatures(release.manifest, note))
        return f"by {signers}; not checked, TANDEM_TRUSTED_KEYS is not set" if signers else "none"
    except ReleaseError as error:
        return str(error)
