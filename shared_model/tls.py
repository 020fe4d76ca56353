"""Certificates of listeners and of connections to other replicas, read again when their files change.

A new pair is taken when it is whole and valid. Until then, and after a damaged one, the pair before it stays in use, so
that a renewal needs no restart and a failed renewal ends nothing.
"""

import logging
import os
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from shared_model.addresses import stays_here
from shared_model.clock import Clock, SystemClock
from shared_model.errors import SettingError
from shared_model.settings import setting
from shared_model.storage import one_line

log = logging.getLogger(__name__)

#: Identifies the contents of a file: device, inode, time of change in nanoseconds, bytes. None: it is not there.
_Seen = tuple[int, int, int, int] | None


@dataclass(frozen=True)
class TlsSettings:
    """TLS of gRPC, of metrics, and between replicas."""

    tls_cert: str = setting("", "Certificate chain of this replica, a PEM file; empty: its listeners have no TLS.")
    tls_key: str = setting("", "Key of TANDEM_TLS_CERT, a PEM file without a password.")
    tls_client_ca: str = setting(
        "", "PEM file of authorities: listeners refuse a caller without a certificate that one of them signed."
    )
    tls_ca: str = setting("", "PEM file of authorities for other replicas' certificates; empty: the system's.")
    tls_name: str = setting(
        "", "The name that other replicas' certificates carry; empty: the host that each advertises."
    )
    insecure: bool = setting(False, "Listen beyond loopback without TLS, and call replicas there that have none.")

    def __post_init__(self) -> None:
        for one, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert"), ("tls_client_ca", "tls_cert")):
            if getattr(self, one) and not getattr(self, other):
                raise SettingError(f"TANDEM_{one.upper()} is set: set TANDEM_{other.upper()}, too")

    @property
    def serves(self) -> bool:
        """Whether listeners have TLS."""
        return bool(self.tls_cert)

    def check_bind(self, variable: str, address: str) -> None:
        """Raises: SettingError if a listener may not bind to `address`, HOST:PORT, which `variable` holds."""
        if not (self.serves or self.insecure or stays_here(address)):
            raise SettingError(
                f"{variable}={address}: other hosts reach this address and it has no TLS: set TANDEM_TLS_CERT and "
                "TANDEM_TLS_KEY, or allow it with --insecure or TANDEM_INSECURE=yes"
            )


@dataclass(frozen=True)
class Credentials:
    """Contents of PEM files that have been checked; empty where the setting is. `context`: of a listener that is not
    gRPC's; None without a certificate. `ends`: when the certificate does, in seconds since 1970; 0 without one."""

    cert: bytes
    key: bytes
    client_ca: bytes
    ca: bytes
    context: ssl.SSLContext | None
    ends: float = 0.0


class CertificateFiles:
    """The files that settings name. `current` may be called from any thread, for each connection: it looks at the files
    and reads them only if they have changed."""

    def __init__(self, settings: TlsSettings, clock: Clock | None = None) -> None:
        """Raises: SettingError naming the variable, the file and the problem."""
        self._settings = settings
        self._clock = clock or SystemClock()
        self._paths = [
            it for it in (settings.tls_cert, settings.tls_key, settings.tls_client_ca, settings.tls_ca) if it
        ]
        self._lock = threading.Lock()
        # Looked at before they are read: what is replaced meanwhile is read at the next look.
        self._seen = self._look()
        self._current = self._read()

    def current(self) -> Credentials:
        """The last valid contents; the same object until they change."""
        seen = self._look()
        with self._lock:
            if seen != self._seen:
                self._seen = seen
                try:
                    self._current = self._read()
                    log.info("%s: read again", ", ".join(self._paths))
                except SettingError as error:
                    log.error("%s; what was read before stays in use", error)
            return self._current

    def _look(self) -> Sequence[_Seen]:
        return [_look(path) for path in self._paths]

    def _read(self) -> Credentials:
        settings, now = self._settings, datetime.fromtimestamp(self._clock.wall(), UTC)
        cert, key = _contents("TLS_CERT", settings.tls_cert), _contents("TLS_KEY", settings.tls_key)
        client_ca, ca = _authorities("TLS_CLIENT_CA", settings.tls_client_ca), _authorities("TLS_CA", settings.tls_ca)
        if not cert:
            return Credentials(cert, key, client_ca, ca, None)
        ends = _check_pair(settings, cert, key, now)
        return Credentials(cert, key, client_ca, ca, _context(settings, client_ca), ends.timestamp())


def _look(path: str) -> _Seen:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _contents(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes() if path else b""
    except OSError as error:
        raise _wrong(name, path, f"cannot be read: {error.strerror}") from error


def _authorities(name: str, path: str) -> bytes:
    from cryptography import x509

    read = _contents(name, path)
    try:
        if read:
            x509.load_pem_x509_certificates(read)
    except ValueError as error:
        raise _wrong(name, path, "holds no certificate in PEM form") from error
    if path and not read:
        raise _wrong(name, path, "is empty")
    return read


def _check_pair(settings: TlsSettings, cert: bytes, key: bytes, now: datetime) -> datetime:
    """When the certificate ends. Raises: SettingError unless it is valid `now` and the key is its own."""
    # Imported here: the nightly run's processes need none of it.
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        leaf = x509.load_pem_x509_certificates(cert)[0]
    except ValueError as error:
        raise _wrong("TLS_CERT", settings.tls_cert, "holds no certificate in PEM form") from error
    try:
        private = load_pem_private_key(key, None)
    except (ValueError, TypeError) as error:
        raise _wrong("TLS_KEY", settings.tls_key, "holds no private key in PEM form without a password") from error
    if private.public_key() != leaf.public_key():
        raise _wrong("TLS_KEY", settings.tls_key, f"is not the key of {settings.tls_cert}")
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        valid = f"{leaf.not_valid_before_utc:%Y-%m-%d %H:%M} to {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        raise _wrong("TLS_CERT", settings.tls_cert, f"is valid from {valid}, and not now")
    return leaf.not_valid_after_utc


def _context(settings: TlsSettings, client_ca: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # The library reads a pair only from files.
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
        if client_ca:
            context.load_verify_locations(cadata=client_ca.decode())
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise _wrong("TLS_CERT", settings.tls_cert, f"is of no use to OpenSSL: {one_line(error)}") from error
    return context


def _wrong(name: str, path: str, problem: str) -> SettingError:
    return SettingError(f"TANDEM_{name}={path}: {problem}")
