"""ed25519 keys and signatures, for releases and for operators.

A public key is written as the base64 of its 32 bytes, one a line; its key id is the start of their sha256.
"""

import base64
import hashlib
from pathlib import Path

from shared_model.errors import BadInput, SettingError

#: Public keys, 32 bytes each.
PublicKeys = tuple[bytes, ...]
SIGNATURE_BYTES = 64


def key_id(public_key: bytes) -> str:
    return hashlib.sha256(public_key).hexdigest()[:16]


def generate(purpose: str) -> tuple[bytes, bytes]:
    """A new key pair: (private key in PEM, public key as a line of a file of public keys)."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem, public_line(private.public_key().public_bytes_raw(), purpose)


def public_line(public_key: bytes, purpose: str) -> bytes:
    """`purpose`: what the key signs, for people."""
    return f"{base64.b64encode(public_key).decode()}  # tandem {purpose} key {key_id(public_key)}\n".encode()


def sign(statement: bytes, private_pem: bytes, source: str) -> tuple[bytes, bytes]:
    """(public key, signature). `source` names the key's file in errors. Raises: BadInput if it holds no such key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(private_pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadInput(source, "is no private key in PEM without a password") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise BadInput(source, "is no ed25519 key; make one with `python -m shared_model keygen`")
    return private.public_key().public_bytes_raw(), private.sign(statement)


def verifies(statement: bytes, public_key: bytes, signature: bytes) -> bool:
    """Whether the owner of a public key of 32 bytes signed the statement."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def read_public_keys(path: Path, setting: str) -> PublicKeys:
    """The keys of a file, which may be none. `setting` begins errors. Raises: SettingError naming the line."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise SettingError(f"{setting}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SettingError(f"{setting}: is no text file of public keys") from error
    written = {number: line.split()[0] for number, line in enumerate(lines, 1) if line.split("#")[0].strip()}
    return tuple(public_key(text, f"{setting}: line {number}") for number, text in written.items())


def public_key(text: str, where: str) -> bytes:
    """Raises: SettingError for a text that is no public key; `where` begins it."""
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise SettingError(f"{where}: {text!r} is no public key (base64 of 32 bytes)")
    return key
