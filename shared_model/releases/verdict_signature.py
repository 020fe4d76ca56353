"""Signatures of the gate's verdict on a release, its report: by the keys that sign releases, or by operators' keys.

A signature covers the release and the bytes of its report. It lies beside the release's own signature, which former
versions read, and goes with the report: a gate that judges again removes it.
"""

import base64
import json
from typing import TYPE_CHECKING

from shared_model.errors import ReleaseError
from shared_model.releases import signature
from shared_model.releases.manifest import Manifest, sha256
from shared_model.trust import ed25519

if TYPE_CHECKING:
    from shared_model.releases.store import Release

#: Name of the report's note, and of the note that maps key ids to signatures in base64.
REPORT, NOTE = "report.json", "report-signature.json"


def counts(release: "Release", report: bytes) -> bool:
    """Whether one of the keys that count here signed this report; True where no signature is asked for.

    Raises: ReleaseError for a report that was changed after it was signed, or a damaged note.
    """
    trusted = {ed25519.key_id(key): key for key in release.verdict_keys()}
    if not trusted:
        return True
    signed = signature.signatures(release.manifest, release.read_note(NOTE), NOTE)
    known = {signer: key for signer, key in trusted.items() if signer in signed}
    statement = _statement(release.manifest, report)
    if known and not any(signature.verifies(signed[signer], key, statement) for signer, key in known.items()):
        raise ReleaseError(
            f"release {release.id}: {release.place}/{REPORT} is not the one that {', '.join(known)} signed; copy the "
            f"release again, or run `python -m shared_model gate {release.id}`"
        )
    return bool(known)


def unsigned(release: "Release") -> str:
    """One line about a verdict that no key that counts here has signed."""
    return (
        f"release {release.id}: {release.place}/{REPORT} is not signed by an operator or a trusted key; "
        f"`python -m shared_model sign {release.id} --key KEY` signs this verdict, `gate` judges anew"
    )


def sign(release: "Release", private_pem: bytes, source: str) -> None:
    """Add a signature of the report. `source`: see `signature.sign`. Raises: BadInput; ReleaseError; OSError."""
    report = release.read_note(REPORT)
    if report is None:
        raise ReleaseError(f"release {release.id} was not judged: it has no {REPORT}")
    public, made = ed25519.sign(_statement(release.manifest, report), private_pem, source)
    kept = signature.signatures(release.manifest, release.read_note(NOTE), NOTE)
    note = {**kept, ed25519.key_id(public): base64.b64encode(made).decode()}
    release.write_note(NOTE, json.dumps(note, indent=1).encode() + b"\n")


def withdraw(release: "Release") -> None:
    """Remove the signatures, before another report is written. Raises: ReleaseError; OSError."""
    if release.read_note(NOTE) is not None:
        release.write_note(NOTE, b"{}\n")


def _statement(manifest: Manifest, report: bytes) -> bytes:
    return f"tandem verdict\n{manifest.id}\n{sha256(manifest.to_json())}\n{sha256(report)}\n".encode()
