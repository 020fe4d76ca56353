"""Signatures of a release, by ed25519 keys that are kept offline.

A signature covers the release's id and the sha256 of its manifest, which holds the sha256 of every file. The id alone
is too short a hash: an attacker could find another release with the same id.

`trust.ed25519` has the format of keys.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path

from shared_model.errors import ReleaseError, SettingError
from shared_model.releases.manifest import Manifest, sha256
from shared_model.settings import StateSettings
from shared_model.trust import ed25519
from shared_model.trust.ed25519 import PublicKeys

#: Name of a release's note that maps key ids to signatures in base64.
NOTE = "signature.json"


def trusted_keys(state: StateSettings) -> PublicKeys | None:
    """The keys that TANDEM_TRUSTED_KEYS names; None if it is not set. Raises: SettingError naming file and line."""
    if not state.trusted_keys:
        return None
    setting = f"TANDEM_TRUSTED_KEYS={state.trusted_keys}"
    found = ed25519.read_public_keys(Path(state.trusted_keys), setting)
    if not found:
        raise SettingError(f"{setting}: holds no key; `python -m shared_model keygen` writes one to KEYFILE.pub")
    return found


def sign(manifest: Manifest, note: bytes | None, private_pem: bytes, source: str) -> tuple[str, bytes]:
    """Add a signature to a release's note: (key id, new note). `source` names the key's file in errors.

    Raises: BadInput if the file holds no ed25519 private key, ReleaseError for a damaged note.
    """
    public, made = ed25519.sign(_statement(manifest), private_pem, source)
    signer = ed25519.key_id(public)
    kept = {**signatures(manifest, note), signer: base64.b64encode(made).decode()}
    return signer, json.dumps(kept, indent=1).encode() + b"\n"


def check(manifest: Manifest, note: bytes | None, trusted: PublicKeys) -> str:
    """Id of the trusted key that signed a release. Raises: ReleaseError if no trusted key signed it."""
    signed = signatures(manifest, note)
    if not signed:
        raise ReleaseError(f"release {manifest.id} is unsigned; sign it with a key that TANDEM_TRUSTED_KEYS names")
    known = {ed25519.key_id(key): key for key in trusted if ed25519.key_id(key) in signed}
    if not known:
        raise ReleaseError(f"release {manifest.id} is signed by {', '.join(signed)}, which TANDEM_TRUSTED_KEYS lacks")
    for signer, key in known.items():
        if verifies(signed[signer], key, _statement(manifest)):
            return signer
    raise ReleaseError(f"release {manifest.id}: the signature by {', '.join(known)} is wrong; copy or sign it again")


def signatures(manifest: Manifest, note: bytes | None, name: str = NOTE) -> Mapping[str, str]:
    """Unverified signatures of a note, by key id. Raises: ReleaseError for a damaged note, by its `name`."""
    try:
        document = json.loads(note or b"{}")
        if not all(isinstance(signature, str) for signature in document.values()):
            raise TypeError(document)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ReleaseError(f"release {manifest.id}: {name} is damaged; copy or sign it again") from error
    return dict(document)


def verifies(signature: str, key: bytes, statement: bytes) -> bool:
    """`signature`: as a note has it, in base64."""
    try:
        return ed25519.verifies(statement, key, base64.b64decode(signature, validate=True))
    except ValueError:
        return False


def _statement(manifest: Manifest) -> bytes:
    return f"tandem release\n{manifest.id}\n{sha256(manifest.to_json())}\n".encode()
