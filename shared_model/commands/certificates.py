"""`certificates`: an authority of one's own, and a certificate of it for each host."""

import argparse
import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from shared_model.commands.common import add_command, say
from shared_model.errors import BadInput
from shared_model.settings import StateSettings
from shared_model.storage import atomic_write

#: Names of an authority and of a host's certificate and key, in their folders.
AUTHORITY, AUTHORITY_KEY, CERTIFICATE, KEY = "ca.pem", "ca.key", "cert.pem", "key.pem"
#: Names that each certificate carries besides its host's: those by which the host calls itself.
_ITSELF = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_DAYS = 3650
#: Rights of certificates.
_PUBLIC = 0o644
#: By which the clocks of hosts may differ.
_BEFORE = timedelta(minutes=5)


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    parser = add_command(
        commands,
        "certificates",
        _run,
        help="make certificates for hosts, and an authority that signs them",
        more=f"FOLDER/{AUTHORITY} is public, FOLDER/{AUTHORITY_KEY} a secret. FOLDER/HOST gets {CERTIFICATE}, {KEY} "
        f"and a copy of {AUTHORITY}. An authority that is there is kept, certificates are renewed.",
        example=".deploy/certificates --host router --host redis",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where they are, or are to be")
    parser.add_argument(
        "--host",
        action="append",
        dest="hosts",
        metavar="NAME[,NAME]",
        help="a host, by its names and numbers; the first names its folder (default: localhost)",
    )
    parser.add_argument("--days", type=int, default=365, help="how long they are valid (default %(default)s)")
    parser.add_argument(
        "--group", action="store_true", help="let the group read the hosts' keys (default: the owner alone)"
    )


def _run(args: argparse.Namespace, state: StateSettings) -> None:
    hosts = [names.split(",") for names in args.hosts or ("localhost",)]
    for name in (name for names in hosts for name in names):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.:-]*", name):
            raise BadInput("--host", f"{name!r} is no name of a host")
    if args.days < 1:
        raise BadInput("--days", f"is {args.days}, must be positive")
    make(args.folder, hosts, args.days, group=args.group)
    say(f"{args.folder}: {AUTHORITY} and certificates of {', '.join(names[0] for names in hosts)}")


def make(folder: Path, hosts: Sequence[Sequence[str]], days: float = 365, group: bool = False) -> None:
    """Make or renew the certificate of each host, given by its names. `group`: its group may read the keys, too.

    Raises: BadInput for an authority that cannot be read; OSError.
    """
    from cryptography import x509

    _open_folder(folder)
    if not (folder / AUTHORITY).exists():
        key = _new_key()
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Tandem")])
        built = _builder(name, name, key, _AUTHORITY_DAYS)
        built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        built = built.add_extension(_usage(signs_certificates=True), critical=True)
        _write_key(folder / AUTHORITY_KEY, key, 0o600)
        atomic_write(folder / AUTHORITY, _pem(_signed(built, key)), _PUBLIC)
    issuer, issuer_key = _authority(folder)
    for names in hosts:
        place = folder / names[0]
        _open_folder(place)
        key = _new_key()
        leaf = _leaf(issuer, key, names, days)
        # A reader between the two finds a pair that does not match, and keeps the one before.
        _write_key(place / KEY, key, 0o640 if group else 0o600)
        atomic_write(place / AUTHORITY, _pem(issuer), _PUBLIC)
        atomic_write(place / CERTIFICATE, _pem(_signed(leaf, issuer_key)), _PUBLIC)


def _open_folder(path: Path) -> None:
    """Other users may look into it: certificates are public, and keys have rights of their own."""
    if not path.exists():
        path.mkdir(parents=True)
        path.chmod(0o755)


def _authority(folder: Path) -> tuple[Any, Any]:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        issuer = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
        key = load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise BadInput(
            str(folder), f"{AUTHORITY} or {AUTHORITY_KEY} cannot be read; both come anew if removed"
        ) from error
    if key.public_key() != issuer.public_key():
        raise BadInput(str(folder), f"{AUTHORITY_KEY} is not the key of {AUTHORITY}; both come anew if removed")
    return issuer, key


def _leaf(issuer: Any, key: Any, names: Sequence[str], days: float) -> Any:
    from cryptography import x509

    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
    built = _builder(subject, issuer.subject, key, days)
    both = [x509.oid.ExtendedKeyUsageOID.SERVER_AUTH, x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key())
    alternatives = [_alternative(name) for name in dict.fromkeys((*names, *_ITSELF))]
    return (
        built.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(authority, critical=False)
    )


def _alternative(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(subject: Any, issuer: Any, key: Any, days: float) -> Any:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(signs_certificates: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        **dict.fromkeys(
            (
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "encipher_only",
                "decipher_only",
            ),
            False,
        ),
    )


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _signed(built: Any, key: Any) -> Any:
    from cryptography.hazmat.primitives.hashes import SHA256

    return built.sign(key, SHA256())


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    read: bytes = certificate.public_bytes(Encoding.PEM)
    return read


def _write_key(path: Path, key: Any, mode: int) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    atomic_write(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), mode)
