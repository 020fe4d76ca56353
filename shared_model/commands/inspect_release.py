"""show, verify, diff: inspect a release, or compare two."""

import argparse
from collections.abc import Iterator
from typing import Any

from shared_model.commands import common
from shared_model.errors import ReleaseError
from shared_model.evaluation import diff, judged
from shared_model.evaluation.judged import Judged, Measured, MeasuredHead
from shared_model.output import OutputSpec
from shared_model.releases import naming, signature
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from shared_model.trust.ed25519 import PublicKeys

_LABELS_SHOWN = 5


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    show = common.add_command(
        commands,
        "show",
        _show,
        help="what a release is, and what its gate measured",
        more="Sizes are in MB; agreement is that with fp32.",
        example="@previous",
    )
    common.add_release(show, optional=True)
    show.add_argument("--json", action="store_true", help="its manifest instead")

    verify = common.add_command(
        commands,
        "verify",
        _verify,
        help="check every file's hash, and the signature if one is asked for",
        more="A signature is asked for where TANDEM_TRUSTED_KEYS is set.",
        example="my-model",
    )
    common.add_release(verify, optional=True)

    compare = common.add_command(
        commands,
        "diff",
        _diff,
        help="what differs between two releases",
        more="In files, labels and, where both were judged, in figures.",
        example="@previous @active",
    )
    compare.add_argument("old", help=naming.HELP)
    compare.add_argument("new", help="likewise")
    compare.add_argument("--all", action="store_true", help=f"name all labels that differ, not {diff.LABELS_SHOWN}")


def _show(args: argparse.Namespace, state: StateSettings) -> None:
    release = common.open_release(state, args.release)
    if args.json:
        print(release.manifest.to_json().decode(), end="")
        return
    mark = common.mark(common.known_pointers(state), release.id)
    for subject, words in _summary(release, mark, signature.trusted_keys(state)):
        print(f"{subject:<13} {words}")


def _verify(args: argparse.Namespace, state: StateSettings) -> None:
    release = Store.from_settings(state).open(common.release_id(state, args.release))
    release.verify()
    signed = "" if signature.trusted_keys(state) is None else ", signed by a trusted key"
    print(f"release {release.id}: {len(release.manifest.files)} files, every one as built{signed}")


def _diff(args: argparse.Namespace, state: StateSettings) -> None:
    old, new = common.open_release(state, args.old), common.open_release(state, args.new)
    found = diff.differences(old, new, None if args.all else diff.LABELS_SHOWN)
    timed = diff.timings(old, new)
    for difference in found:
        print(f"{difference.subject:<13} {difference.words}")
    if timed:
        call = max(len(one.call) for one in timed)
        print(f"\n{'latency':<13} {'rows×tokens':<{call}} {'old ms':>9} {'new ms':>9}")
        for one in timed:
            print(f"{one.variant:<13} {one.call:<{call}} {one.old:>9.2f} {one.new:>9.2f}")
        print("Each gate measured when it ran: latencies of two occasions also show how busy the host was.")
    if not found and not timed:
        print("nothing differs")


def _summary(release: Release, mark: str, trusted: PublicKeys | None) -> Iterator[tuple[str, str]]:
    manifest = release.manifest
    found, gate = _gate(release)
    yield "release", "  ".join(filter(None, (release.id, mark)))
    yield "place", release.place
    yield "parent", f"sha256 {manifest.parent}"
    yield "output", _output(release.output)
    if len(release.heads.specs) > 1:
        yield from ((f"head {spec.name}", _output(spec.output)) for spec in release.heads.specs)
    yield "reads", diff.reads_in_words(manifest.reads)
    yield "quantisation", f"{manifest.quantisation}; calibration sha256 {manifest.calibration}"
    yield "gate", gate
    yield "signature", _signature(release, trusted)
    for variant in manifest.variants:
        measured = found.variants.get(str(variant)) if found else None
        yield str(variant), f"{release.size(variant) / 1e6:.1f} MB{_measured(measured)}"


def _output(output: OutputSpec) -> str:
    if not output.names:
        return f"{output.kind}, {output.width} numbers"
    shown = ", ".join(output.names[:_LABELS_SHOWN]) + (", …" if output.width > _LABELS_SHOWN else "")
    calibrated = f"; temperature {output.temperature:g}" if output.temperature != 1 else ""
    abstains = f"; abstains {output.abstaining}" if output.abstains else ""
    return f"{output.kind}, {output.width}: {shown}{calibrated}{abstains}"


def _gate(release: Release) -> tuple[Judged | None, str]:
    """The release's report, and its summary in one line."""
    try:
        found = judged.read(release)
    except ReleaseError as error:
        return None, str(error)
    if found is None:
        return None, "not judged"
    unproven = f"; unproven: {', '.join(found.unproven)}" if found.unproven else ""
    errors = ", ".join(f"{head} {error:.4f}".lstrip() for head, error in found.eces.items())
    ece = f"; expected calibration error {errors}" if errors else ""
    return found, f"passed{unproven}{ece}" if found.passed else f"REFUSED: {'; '.join(found.failures)}{unproven}"


def _measured(measured: Measured | None) -> str:
    if measured is None:
        return ", not measured here"
    heads = "".join(f"; {name}{_shares(head)}" for name, head in measured.heads.items())
    return f", compiled as {measured.compiled}{_shares(measured)}{heads}"


def _shares(measured: Measured | MeasuredHead) -> str:
    agreement = "" if measured.agreement is None else f", agreement {measured.agreement:.2%}"
    clear = "" if measured.clear_agreement is None else f" ({measured.clear_agreement:.2%} where fp32 is sure)"
    accuracy = "" if measured.accuracy is None else f", accuracy {measured.accuracy:.2%}"
    return f"{agreement}{clear}{accuracy}"


def _signature(release: Release, trusted: PublicKeys | None) -> str:
    try:
        note = release.read_note(signature.NOTE)
        if trusted is not None:
            return f"by {signature.check(release.manifest, note, trusted)}, which is trusted"
        signers = ", ".join(signature.signatures(release.manifest, note))
        return f"by {signers}; not checked, TANDEM_TRUSTED_KEYS is not set" if signers else "none"
    except ReleaseError as error:
        return str(error)
