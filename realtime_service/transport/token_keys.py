"""The public keys that verify callers' tokens: from a JWKS or PEM file, or a JWKS behind a URL, read again in time.

A file is read again when it changes, a URL every five minutes and when a token names a key that is not known. New keys
that cannot be used change nothing, and are logged once.
"""

import asyncio
import ipaddress
import json
import logging
import re
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from realtime_service.settings import ServiceSettings
from shared_model.clock import Clock
from shared_model.errors import SettingError

#: Seconds between looks at a file, and between two readings of a URL.
FILE_SECONDS = 1.0
URL_SECONDS = 300.0
#: Seconds between two readings that unknown keys ask for, so that callers cannot make this process call a URL often.
UNKNOWN_KEY_SECONDS = 10.0
#: Longest reading of a URL.
_FETCH_SECONDS = 5.0
#: Bits of an RSA key, at least (NIST SP 800-131A).
MIN_RSA_BITS = 2048

#: Of public keys alone: a token that is signed with a public key as if it were a secret must not pass.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_PEM = re.compile(rb"-----BEGIN ([A-Z ]*PUBLIC KEY)-----.+?-----END \1-----", re.DOTALL)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenKey:
    """A public key for tokens. `id` is empty where the file names none: then it is tried for every token."""

    key: Any
    algorithms: tuple[str, ...]
    id: str = ""


class TokenKeys:
    """The keys in force. `current` is replaced as a whole; without a source it stays empty and tokens are ignored."""

    def __init__(self, settings: ServiceSettings, clock: Clock) -> None:
        """Raises: SettingError naming TANDEM_TOKEN_KEYS where the keys cannot be read or used."""
        self._source = settings.token_keys
        self._clock = clock
        self._read: Callable[[], bytes] = _reader(self._source)
        self._is_url = _is_url(self._source)
        self._raw: bytes | None = None
        self._failure = ""
        self._asked_at = -UNKNOWN_KEY_SECONDS
        self._reading = asyncio.Lock()
        self.current: tuple[TokenKey, ...] = ()
        if self._source:
            self._adopt(self._read())

    async def run(self) -> None:
        """Read the keys again in time, until cancelled. Not for a process without keys."""
        while True:
            await asyncio.sleep(URL_SECONDS if self._is_url else FILE_SECONDS)
            await self.refresh()

    async def refresh(self) -> None:
        """Read the keys again, in a thread; the former ones stay if that fails."""
        async with self._reading:
            try:
                self._adopt(await asyncio.to_thread(self._read))
                self._failure = ""
            except SettingError as error:
                if str(error) != self._failure:
                    log.error("%s; the former keys stay in force", error)
                self._failure = str(error)

    async def find(self, key_id: str) -> bool:
        """Look for a key that is not known: at most every ten seconds. Returns whether it is known now."""
        now = self._clock.monotonic()
        if not self._reading.locked():
            if now - self._asked_at < UNKNOWN_KEY_SECONDS:
                return False
            self._asked_at = now
            await self.refresh()
        else:
            # Calls that meet the same new key share one reading.
            async with self._reading:
                pass
        return any(key.id == key_id for key in self.current)

    def _adopt(self, raw: bytes) -> None:
        if raw != self._raw:
            self.current = _parsed(self._source, raw)
            self._raw = raw


def _is_url(source: str) -> bool:
    return "://" in source


def _reader(source: str) -> Callable[[], bytes]:
    """Reads a file or URL. Raises: SettingError, also when it reads."""
    if not _is_url(source):
        return lambda: _from_file(source)
    import jwt

    _check_url(source)
    # `TokenKeys` keeps the keys: a cache of the client would hand out old ones.
    client = jwt.PyJWKClient(source, cache_jwk_set=False, timeout=_FETCH_SECONDS)

    def fetch() -> bytes:
        try:
            return json.dumps(client.fetch_data()).encode()
        except (jwt.PyJWTError, OSError, ValueError) as error:
            raise SettingError(f"{_named(source)}: cannot be fetched: {error}") from error

    return fetch


def _from_file(source: str) -> bytes:
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise SettingError(f"{_named(source)}: cannot be read: {error.strerror}") from error


def _check_url(source: str) -> None:
    """Raises: SettingError for a URL that others on the network could answer."""
    url = urllib.parse.urlsplit(source)
    if url.scheme == "https" and url.hostname:
        return
    if url.scheme == "http" and _is_loopback(url.hostname or ""):
        return
    raise SettingError(f"{_named(source)}: expected a file, https://, or http:// on a loopback address")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _named(source: str) -> str:
    return f"TANDEM_TOKEN_KEYS={source}"


def _parsed(source: str, raw: bytes) -> tuple[TokenKey, ...]:
    """The keys in a file. Raises: SettingError."""
    if b"PRIVATE KEY" in raw:
        raise SettingError(f"{_named(source)}: holds a private key, and only public ones belong there")
    try:
        keys = tuple(_from_jwks(raw) if raw.lstrip().startswith(b"{") else _from_pem(raw))
    except (ValueError, TypeError, AttributeError) as error:
        raise SettingError(f"{_named(source)}: is no file of public keys, neither JWKS nor PEM: {error}") from error
    if not keys:
        raise SettingError(f"{_named(source)}: holds no public key that tokens could be signed by")
    for bits in (getattr(key.key, "key_size", MIN_RSA_BITS) for key in keys if key.algorithms[0][:2] in ("RS", "PS")):
        if bits < MIN_RSA_BITS:
            raise SettingError(f"{_named(source)}: holds an RSA key of {bits} bits, and {MIN_RSA_BITS} are the least")
    return keys


def _from_pem(raw: bytes) -> Iterator[TokenKey]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    for found in _PEM.finditer(raw):
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


def _from_jwks(raw: bytes) -> Iterator[TokenKey]:
    import jwt

    document = json.loads(raw)
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
