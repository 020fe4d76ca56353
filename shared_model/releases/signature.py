"""Signatures of a release, by ed25519 keys that are kept offline.

A signature covers the release's id and the sha256 of its manifest, which holds the sha256 of every file. The id alone
is too short a hash: an attacker could find another release with the same id.

A public key is the base64 of its 32 bytes; its key id is the start of their sha256.
"""

import base64
import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from shared_model.errors import BadInput, ReleaseError, SettingError
from shared_model.releases.manifest import Manifest, sha256
from shared_model.settings import StateSettings

#: Name of a release's note that maps key ids to signatures in base64.
NOTE = "signature.json"

#: Public keys, 32 bytes each.
TrustedKeys = tuple[bytes, ...]


def key_id(public_key: bytes) -> str:
    return hashlib.sha256(public_key).hexdigest()[:16]


def trusted_keys(state: StateSettings) -> TrustedKeys | None:
    """The keys that TANDEM_TRUSTED_KEYS names; None if it is not set. Raises: SettingError naming file and line."""
    if not state.trusted_keys:
        return None
    setting = f"TANDEM_TRUSTED_KEYS={state.trusted_keys}"
    try:
        lines = Path(state.trusted_keys).read_text().splitlines()
    except OSError as error:
        raise SettingError(f"{setting}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SettingError(f"{setting}: is no text file of public keys") from error
    written = {number: line.split()[0] for number, line in enumerate(lines, 1) if line.split("#")[0].strip()}
    if not written:
        raise SettingError(f"{setting}: holds no key; `python -m shared_model keygen` writes one to KEYFILE.pub")
    return tuple(_public_key(text, f"{setting}: line {number}") for number, text in written.items())


def generate() -> tuple[bytes, bytes]:
    """A new key pair: (private key in PEM, public key as a line for the file of trusted keys)."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    line = f"{base64.b64encode(public).decode()}  # tandem release key {key_id(public)}\n"
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), line.encode()


def sign(manifest: Manifest, note: bytes | None, private_pem: bytes, source: str) -> tuple[str, bytes]:
    """Add a signature to a release's note: (key id, new note). `source` names the key's file in errors.

    Raises: BadInput if the file holds no ed25519 private key, ReleaseError for a damaged note.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(private_pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadInput(source, "is no private key in PEM without a password") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise BadInput(source, "is no ed25519 key; make one with `python -m shared_model keygen`")
    signer = key_id(private.public_key().public_bytes_raw())
    made = base64.b64encode(private.sign(_statement(manifest))).decode()
    return signer, json.dumps({**signatures(manifest, note), signer: made}, indent=1).encode() + b"\n"


def check(manifest: Manifest, note: bytes | None, trusted: TrustedKeys) -> str:
    """Id of the trusted key that signed a release. Raises: ReleaseError if no trusted key signed it."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signed = signatures(manifest, note)
    if not signed:
        raise ReleaseError(f"release {manifest.id} is unsigned; sign it with a key that TANDEM_TRUSTED_KEYS names")
    known = {key_id(key): key for key in trusted if key_id(key) in signed}
    if not known:
        raise ReleaseError(f"release {manifest.id} is signed by {', '.join(signed)}, which TANDEM_TRUSTED_KEYS lacks")
    for signer, key in known.items():
        with contextlib.suppress(InvalidSignature, ValueError):
            made = base64.b64decode(signed[signer], validate=True)
            Ed25519PublicKey.from_public_bytes(key).verify(made, _statement(manifest))
            return signer
    raise ReleaseError(f"release {manifest.id}: the signature by {', '.join(known)} is wrong; copy or sign it again")


def signatures(manifest: Manifest, note: bytes | None) -> Mapping[str, str]:
    """Unverified signatures of a note, by key id. Raises: ReleaseError for a damaged note."""
    try:
        document = json.loads(note or b"{}")
        if not all(isinstance(signature, str) for signature in document.values()):
            raise TypeError(document)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ReleaseError(f"release {manifest.id}: {NOTE} is damaged; copy or sign it again") from error
    return dict(document)


def _statement(manifest: Manifest) -> bytes:
    return f"tandem release\n{manifest.id}\n{sha256(manifest.to_json())}\n".encode()


def _public_key(text: str, where: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise SettingError(f"{where}: {text!r} is no public key (base64 of 32 bytes)")
    return key
