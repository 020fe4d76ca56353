"""Arguments of the commands that call a service, or read its metrics: addresses, the caller's token, and TLS."""

import argparse
import functools
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from realtime_service.client import DEFAULT_ADDRESS, Client, Tls
from shared_model.errors import BadInput

if TYPE_CHECKING:
    from realtime_service.cli.top import Reader


def add_to(parser: argparse.ArgumentParser) -> None:
    meaning = "the service, or several with commas (default %(default)s)"
    parser.add_argument("--address", default=DEFAULT_ADDRESS, metavar="HOST:PORT", help=meaning)
    meaning = "a file with the bearer token of the caller, read before each call"
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=meaning)
    _add_tls_to(parser)


def add_metrics_to(parser: argparse.ArgumentParser) -> None:
    meaning = "where replicas export their metrics, with commas (default %(default)s)"
    parser.add_argument("--metrics", default="127.0.0.1:9464", metavar="HOST:PORT", help=meaning)
    parser.add_argument("--seconds", type=float, default=2.0, help="between two readings (default %(default)s)")
    parser.add_argument("--frames", type=int, default=0, metavar="N", help="end after so many (default: at Ctrl-C)")
    meaning = "a file with the bearer token of an operator, read before each reading"
    parser.add_argument("--token-file", type=Path, metavar="FILE", help=meaning)
    _add_tls_to(parser)


def _add_tls_to(parser: argparse.ArgumentParser) -> None:
    tls = parser.add_argument_group("TLS")
    tls.add_argument("--tls", action="store_true", help="call with TLS, trusting the system's authorities")
    tls.add_argument("--ca", type=Path, metavar="FILE", help="call with TLS, trusting the authorities in this PEM file")
    tls.add_argument("--cert", type=Path, metavar="FILE", help="PEM file of a certificate to show, with --key")
    tls.add_argument("--key", type=Path, metavar="FILE", help="PEM file of its key")
    tls.add_argument("--tls-name", default="", metavar="NAME", help="name in the certificate (default: the host)")
    tls.add_argument("--insecure", action="store_true", help="allow a token to travel to other hosts without TLS")


def client(args: argparse.Namespace, caller_id: str = "") -> Client:
    """Raises: BadInput."""
    tls = Tls(args.ca or b"", args.cert or b"", args.key or b"", args.tls_name) if _asks_tls(args) else False
    return Client(args.address, caller_id=caller_id, token=_token(args) or "", tls=tls, insecure=args.insecure)


def metrics_reader(args: argparse.Namespace) -> "Reader":
    """Raises: BadInput."""
    # Most commands read no metrics.
    from realtime_service.cli.top import Reader

    return Reader(_context(args) if _asks_tls(args) else None, args.tls_name, _token(args), args.insecure)


def _asks_tls(args: argparse.Namespace) -> bool:
    return bool(args.tls or args.ca or args.cert or args.key or args.tls_name)


def _context(args: argparse.Namespace) -> ssl.SSLContext:
    """Raises: BadInput."""
    if bool(args.cert) != bool(args.key):
        raise BadInput("--cert", "a certificate and its key go together")
    try:
        context = ssl.create_default_context(cafile=args.ca)
        if args.cert:
            context.load_cert_chain(args.cert, args.key)
    except OSError as error:
        raise BadInput("--ca, --cert, --key", f"cannot be read as PEM files: {error}") from error
    return context


def _token(args: argparse.Namespace) -> Callable[[], str] | None:
    return functools.partial(_read_token, args.token_file) if args.token_file else None


def _read_token(file: Path) -> str:
    """Read before each call, because its writer renews the token. Raises: BadInput."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("--token-file", f"{file} cannot be read: {error}") from error
