"""The caller's name: the subject of a verified token, else the name that the caller claims, else its address.

A token names a caller, so that no other caller spends its quota. It grants nothing, so its audience is not checked.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from realtime_service.errors import Unauthenticated
from realtime_service.settings import ServiceSettings
from shared_model.clock import Clock
from shared_model.errors import SettingError

#: Metadata with the name that a caller claims, and with the token that proves its name.
CALLER_ID = "x-caller-id"
AUTHORIZATION = "authorization"
#: Characters of a name that count: it travels in heartbeats.
MAX_NAME = 256

#: Of public keys alone: a token that is signed with a public key as if it were a secret must not pass.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_PEM = re.compile(rb"-----BEGIN ([A-Z ]*PUBLIC KEY)-----.+?-----END \1-----", re.DOTALL)
#: Verified tokens that are remembered.
_REMEMBERED = 10_000
#: Seconds by which the clock of who made a token may be ahead of ours.
_AHEAD_SECONDS = 30.0
#: Times are compared with our own clock.
_OPTIONS: Any = {
    "require": ["sub", "exp"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
}


@dataclass(frozen=True)
class TokenKey:
    """A public key for tokens. `id` is empty where the file names none: then it is tried for every token."""

    key: Any
    algorithms: tuple[str, ...]
    id: str = ""


class Callers:
    """`keys`: verify tokens; without any, tokens are ignored."""

    def __init__(self, keys: tuple[TokenKey, ...], clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        # By token: who it names, and until when (UTC).
        self._verified: dict[str, tuple[str, float]] = {}

    @property
    def verify(self) -> bool:
        """Whether tokens count."""
        return bool(self._keys)

    def of(self, context: "grpc.aio.ServicerContext[Any, Any]") -> str:
        """Raises: Unauthenticated for a token that is not valid. A call without one is no error."""
        claimed = ""
        for name, value in context.invocation_metadata() or ():
            if name == CALLER_ID:
                claimed = claimed or str(value)[:MAX_NAME]
            elif name == AUTHORIZATION and self._keys:
                scheme, _, token = str(value).partition(" ")
                if scheme.lower() == "bearer":
                    return self._subject(token.strip())
        return claimed or context.peer().rpartition(":")[0]

    def _subject(self, token: str) -> str:
        now = self._clock.wall()
        subject, end = self._verified.get(token) or self._verify(token, now)
        # Also false for NaN.
        if not now < end:
            self._verified.pop(token, None)
            raise Unauthenticated("the bearer token has expired")
        return subject

    def _verify(self, token: str, now: float) -> tuple[str, float]:
        claims = self._claims(token)
        if _time(claims.get("nbf", 0)) > now + _AHEAD_SECONDS:
            raise Unauthenticated("the bearer token is not valid yet")
        # Heartbeats carry the name in UTF-8: surrogates are replaced.
        subject = claims["sub"].encode(errors="replace").decode()[:MAX_NAME]
        if not subject:
            raise Unauthenticated("the bearer token names nobody")
        if len(self._verified) >= _REMEMBERED:
            del self._verified[next(iter(self._verified))]
        self._verified[token] = subject, _time(claims["exp"])
        return self._verified[token]

    def _claims(self, token: str) -> dict[str, Any]:
        """The claims of a token that one of our keys has signed."""
        import jwt

        try:
            named = jwt.get_unverified_header(token).get("kid")
        except (jwt.InvalidTokenError, ValueError) as error:
            raise Unauthenticated("the bearer token is not valid") from error
        for key in self._keys:
            if named and key.id and named != key.id:
                continue
            try:
                return jwt.decode(token, key.key, algorithms=list(key.algorithms), options=_OPTIONS)
            except jwt.PyJWTError:
                continue
        raise Unauthenticated("the bearer token is not valid")


def _time(claim: Any) -> float:
    """Seconds since the epoch; NaN for what is no time."""
    try:
        return float(claim) if isinstance(claim, int | float) else math.nan
    except OverflowError:
        return math.nan


def token_keys(settings: ServiceSettings) -> tuple[TokenKey, ...]:
    """The keys in the file that TANDEM_TOKEN_KEYS names; none where it is not set. Raises: SettingError naming it."""
    if not settings.token_keys:
        return ()
    setting = f"TANDEM_TOKEN_KEYS={settings.token_keys}"
    try:
        written = Path(settings.token_keys).read_bytes()
    except OSError as error:
        raise SettingError(f"{setting}: cannot be read: {error.strerror}") from error
    if b"PRIVATE KEY" in written:
        raise SettingError(f"{setting}: holds a private key, and only public ones belong there")
    try:
        keys = tuple(_from_jwks(written) if written.lstrip().startswith(b"{") else _from_pem(written))
    except (ValueError, TypeError, AttributeError) as error:
        raise SettingError(f"{setting}: is no file of public keys, neither JWKS nor PEM: {error}") from error
    if not keys:
        raise SettingError(f"{setting}: holds no public key that tokens could be signed by")
    return keys


def _from_pem(written: bytes) -> Iterator[TokenKey]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    for found in _PEM.finditer(written):
        try:
            key = load_pem_public_key(found[0])
        except UnsupportedAlgorithm as error:
            raise ValueError(str(error)) from error
        algorithms = tuple(name for name in _ALGORITHMS if _verifies(name, key))
        if not algorithms:
            raise ValueError("it holds a key of a kind that signs no tokens")
        yield TokenKey(key, algorithms)


def _verifies(algorithm: str, key: Any) -> bool:
    import jwt

    try:
        jwt.get_algorithm_by_name(algorithm).prepare_key(key)
    except (jwt.InvalidKeyError, TypeError):
        return False
    return True


def _from_jwks(written: bytes) -> Iterator[TokenKey]:
    import jwt

    document = json.loads(written)
    for described in document.get("keys", [document]):
        if "d" in described or described.get("kty") == "oct":
            raise ValueError("it holds a secret key, and only public ones belong there")
        if described.get("use") == "enc":
            continue
        try:
            found = jwt.PyJWK(described)
        except jwt.PyJWTError as error:
            raise ValueError("it holds a key that cannot be read") from error
        yield TokenKey(found.key, (found.algorithm_name,), found.key_id or "")
