"""The keys of one process: files in a folder that only its user can read (TANDEM_KEYS, by default STATE/keys).

    cluster.key      symmetric, shared by replicas and routers: authenticates heartbeats and calls between them
    operator.key     ed25519, only where operators run promote, canary, rollback, policy and dead-letters
    operators.pub    the operators' public keys, one a line: all that replicas, routers and the nightly run need

Where a key exists, what it protects must carry a valid signature or MAC. With the embedded Redis, missing keys are made
at their first use; with an external one they are only made by `python -m shared_model keys`.
"""

import base64
import contextlib
import fcntl
import logging
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shared_model.errors import SettingError, Untrusted
from shared_model.redis_store.server import external_url
from shared_model.settings import StateSettings
from shared_model.trust import ed25519, high_water
from shared_model.trust.ed25519 import PublicKeys
from shared_model.trust.high_water import HighWater

CLUSTER, OPERATOR, OPERATORS = "cluster.key", "operator.key", "operators.pub"
#: Exists from the moment when an operator key is made until what was stored before is signed by it.
UNSETTLED = "unsettled"
#: The command that makes keys, for messages.
COMMAND = "python -m shared_model keys"
_CLUSTER_BYTES = 32

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Signature:
    """`signer`: a public key."""

    signer: bytes
    value: bytes


@dataclass(frozen=True)
class Keyring:
    """`cluster`, `operators`: empty where nothing is verified. `operator`: a private key in PEM; empty where this
    machine does not sign. `accept_unsigned`: during a rolling upgrade. `accepted`: versions that operators signed and
    this host accepted."""

    folder: Path = Path()
    cluster: bytes = field(default=b"", repr=False)
    operators: PublicKeys = ()
    operator: bytes = field(default=b"", repr=False)
    accept_unsigned: bool = False
    accepted: HighWater = field(default_factory=HighWater, repr=False, compare=False)

    @property
    def public(self) -> "Keyring":
        """All that is needed to verify signatures, and nothing secret."""
        return Keyring(self.folder, operators=self.operators, accept_unsigned=self.accept_unsigned)

    @property
    def unsettled(self) -> bool:
        return bool(self.operator) and (self.folder / UNSETTLED).exists()

    def settle(self) -> None:
        """To be called when all that was stored before the operator key was made is signed."""
        (self.folder / UNSETTLED).unlink(missing_ok=True)

    def sign(self, statement: bytes) -> Signature | None:
        """None where nothing is signed. Raises: SettingError where signatures are enforced and no key is here."""
        if self.operator:
            return Signature(*ed25519.sign(statement, self.operator, str(self.folder / OPERATOR)))
        if self.operators and not self.accept_unsigned:
            raise SettingError(
                f"{self.folder} has no {OPERATOR}, and {OPERATORS} wants an operator's signature: run this where an "
                f"operator's key is, or name its folder by TANDEM_KEYS"
            )
        return None

    def check(self, statement: bytes, signature: Signature | None) -> None:
        """Raises: Untrusted for a statement that no operator signed; its text is a predicate without a subject."""
        if not self.operators:
            return
        if signature is None:
            if self.accept_unsigned:
                return
            raise Untrusted(
                f"is unsigned, and {self.folder / OPERATORS} wants an operator's signature; write it anew where "
                f"{OPERATOR} is, or set TANDEM_UNSIGNED=accept for the time of an upgrade"
            )
        if signature.signer not in self.operators:
            raise Untrusted(f"is signed by {ed25519.key_id(signature.signer)}, which {self.folder / OPERATORS} lacks")
        if not ed25519.verifies(statement, signature.signer, signature.value):
            raise Untrusted(f"has a wrong signature by {ed25519.key_id(signature.signer)}: it was changed by others")

    def accepts(self, statement: bytes, signature: Signature) -> bool:
        """Whether one of these operators made the signature."""
        return signature.signer in self.operators and ed25519.verifies(statement, signature.signer, signature.value)


#: Of a process without keys: it signs nothing and verifies nothing.
WITHOUT_KEYS = Keyring()


def load(state: StateSettings) -> Keyring:
    """The keys of this process; with the embedded Redis missing ones are made. Raises: SettingError."""
    folder = state.keys_dir
    if not external_url(state):
        make(folder, cluster=True, operator=not (folder / OPERATORS).exists())
    return read(state)


def read(state: StateSettings) -> Keyring:
    """The keys that are there. Raises: SettingError."""
    folder = state.keys_dir
    public = folder / OPERATORS
    operators = ed25519.read_public_keys(public, str(public)) if public.exists() else ()
    return Keyring(
        folder,
        _cluster_key(folder / CLUSTER),
        operators,
        _read(folder / OPERATOR),
        state.unsigned == "accept",
        HighWater(state.state / high_water.FILE if operators else None),
    )


def warn_of_missing(keys: Keyring) -> None:
    """Log once, at the start of a service, which keys it lacks."""
    missing = [name for name, found in ((CLUSTER, keys.cluster), (OPERATORS, keys.operators)) if not found]
    if missing:
        log.warning(
            "no %s in %s: each writer of Redis can direct this service; `%s` makes them", " and no ".join(missing),
            keys.folder, COMMAND,
        )  # fmt: skip


def make(folder: Path, cluster: bool, operator: bool) -> list[Path]:
    """Make the missing keys and return their files. Processes that do so at once agree. Raises: SettingError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(folder):
            made, path = list[Path](), folder / CLUSTER
            if cluster and not path.exists():
                made.append(_write_new(path, secrets.token_hex(_CLUSTER_BYTES).encode() + b"\n"))
            made += _make_operator(folder, operator)
    except OSError as error:
        raise SettingError(f"TANDEM_KEYS={folder}: no keys can be made there: {error.strerror}") from error
    return made


def trust(folder: Path, public_key: bytes) -> None:
    """Add an operator's public key. Raises: OSError."""
    with _locked(folder):
        _add_public(folder / OPERATORS, public_key)


def encoded(key_or_value: bytes) -> str:
    return base64.b64encode(key_or_value).decode()


def _make_operator(folder: Path, wanted: bool) -> list[Path]:
    path, public = folder / OPERATOR, folder / OPERATORS
    if not wanted:
        return []
    made = []
    if not path.exists():
        private, _ = ed25519.generate("operator")
        _write_new(folder / UNSETTLED, b"")
        made.append(_write_new(path, private))
    own, _ = ed25519.sign(b"", path.read_bytes(), str(path))
    return [*made, *_add_public(public, own)]


def _add_public(path: Path, key: bytes) -> list[Path]:
    if path.exists() and key in ed25519.read_public_keys(path, str(path)):
        return []
    return [_write_new(path, _read(path) + ed25519.public_line(key, "operator"))]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with open(os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_new(path: Path, data: bytes) -> Path:
    """Write a file that readers see whole or not at all."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    part.replace(path)
    return path


def _cluster_key(path: Path) -> bytes:
    key = _read(path).strip()
    if path.exists() and len(key) < _CLUSTER_BYTES:
        raise SettingError(
            f"{path}: holds {len(key)} bytes, and a key has {_CLUSTER_BYTES} or more; `{COMMAND}` makes one"
        )
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise SettingError(f"{path}: cannot be read: {error.strerror}") from error
