"""Certificates for tests, made by the command that operators use, and connections that speak chosen versions of TLS."""

import socket
import ssl
import urllib.request
import warnings
from dataclasses import dataclass
from pathlib import Path

from realtime_service.rpc.credentials import ChannelTls
from shared_model.commands import certificates
from shared_model.tls import TlsSettings

HOST = "localhost"


@dataclass(frozen=True)
class Certified:
    """A folder with an authority and the certificate of `localhost`, which is 127.0.0.1's, too."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / certificates.AUTHORITY

    @property
    def cert(self) -> Path:
        return self.folder / HOST / certificates.CERTIFICATE

    @property
    def key(self) -> Path:
        return self.folder / HOST / certificates.KEY

    def renew(self, days: float = 1) -> "Certified":
        certificates.make(self.folder, [[HOST]], days)
        return self

    def settings(self, mutual: bool = False, **others: str) -> TlsSettings:
        """Of a replica with this certificate. `mutual`: callers show one of the same authority."""
        authorities = {"tls_client_ca": str(self.ca)} if mutual else {}
        return TlsSettings(**{**self._pair, "tls_ca": str(self.ca), **authorities, **others})

    def environment(self, mutual: bool = False) -> dict[str, str]:
        """The same as variables."""
        settings = self.settings(mutual)
        names = ("tls_cert", "tls_key", "tls_ca", "tls_client_ca")
        return {f"TANDEM_{name.upper()}": getattr(settings, name) for name in names if getattr(settings, name)}

    def channel(self, mutual: bool = False) -> ChannelTls:
        """Of a caller who trusts the authority. `mutual`: and shows this certificate."""
        ca, cert, key = self.ca.read_bytes(), self.cert.read_bytes(), self.key.read_bytes()
        return ChannelTls(ca, cert, key) if mutual else ChannelTls(ca)

    @property
    def _pair(self) -> dict[str, str]:
        return {"tls_cert": str(self.cert), "tls_key": str(self.key)}


def certified(folder: Path) -> Certified:
    return Certified(folder).renew()


def serial(address: str, ca: Path, own: Certified | None = None) -> int:
    """The serial number of the certificate that a listener shows. Raises: ssl.SSLError if it is not to be trusted."""
    from cryptography import x509

    context = ssl.create_default_context(cafile=str(ca))
    context.set_alpn_protocols(["h2", "http/1.1"])
    if own:
        context.load_cert_chain(own.cert, own.key)
    with _connected(address) as plain, context.wrap_socket(plain, server_hostname=HOST) as secure:
        return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"").serial_number


def scraped(url: str, ca: Path, own: Certified | None = None) -> str:
    """The page of metrics. Raises: OSError."""
    return read(f"{url}/metrics", ca, own)


def read(url: str, ca: Path, own: Certified | None = None) -> str:
    """Raises: OSError."""
    context = ssl.create_default_context(cafile=str(ca))
    if own:
        context.load_cert_chain(own.cert, own.key)
    with urllib.request.urlopen(url, context=context, timeout=10) as page:  # noqa: S310 - our own
        return str(page.read().decode())


def spoken(address: str, latest: ssl.TLSVersion) -> str:
    """The version of TLS that a listener agrees to with a caller that knows none after `latest`; empty for none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # The system's OpenSSL would itself refuse to offer these.
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.set_alpn_protocols(["h2", "http/1.1"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, latest
    try:
        with _connected(address) as plain, context.wrap_socket(plain) as secure:
            return secure.version() or ""
    except (ssl.SSLError, ConnectionResetError):
        return ""


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)
