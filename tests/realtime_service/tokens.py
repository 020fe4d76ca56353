"""Keys of tests, and tokens signed by them."""

import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ED = Ed25519PrivateKey.generate()
EC = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PRIVATE = {"EdDSA": ED, "ES256": EC, "RS256": RSA, "PS512": RSA}

Metadata = tuple[tuple[str, str], ...]


def pem(key: Any) -> bytes:
    return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def jwk(key: Any, algorithm: str, **more: str) -> dict[str, Any]:
    described = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**described, "alg": algorithm, **more}


def token(
    key: Any = ED, algorithm: str = "EdDSA", *, headers: dict[str, str] | None = None, now: float = 0.0, **claims: Any
) -> str:
    """Of "alice", valid for a minute, unless the claims say otherwise; a claim of None is left out. `now`: by default
    the clock of this machine."""
    all_claims = {"sub": "alice", "exp": (now or time.time()) + 60, **claims}
    return jwt.encode({k: v for k, v in all_claims.items() if v is not None}, key, algorithm, headers)


def bearer(value: str) -> Metadata:
    return (("authorization", f"Bearer {value}"),)


def key_file(folder: Path, *keys: Any) -> Path:
    """A file with the public keys of ED, EC and RSA, or of others."""
    file = folder / "keys.pem"
    file.write_bytes(b"# who makes our tokens\n" + b"".join(map(pem, keys or (ED, EC, RSA))))
    return file
