"""Arguments of the commands that call a service: its address, and TLS."""

import argparse
from pathlib import Path

from realtime_service.client import DEFAULT_ADDRESS, Client, Tls


def add_to(parser: argparse.ArgumentParser) -> None:
    meaning = "the service, or several with commas (default %(default)s)"
    parser.add_argument("--address", default=DEFAULT_ADDRESS, metavar="HOST:PORT", help=meaning)
    tls = parser.add_argument_group("TLS")
    tls.add_argument("--tls", action="store_true", help="call with TLS, trusting the system's authorities")
    tls.add_argument("--ca", type=Path, metavar="FILE", help="call with TLS, trusting the authorities in this PEM file")
    tls.add_argument("--cert", type=Path, metavar="FILE", help="PEM file of a certificate to show, with --key")
    tls.add_argument("--key", type=Path, metavar="FILE", help="PEM file of its key")
    tls.add_argument("--tls-name", default="", metavar="NAME", help="name in the certificate (default: the host)")
    tls.add_argument("--insecure", action="store_true", help="allow a token to travel to other hosts without TLS")


def client(args: argparse.Namespace, caller_id: str = "") -> Client:
    """Raises: BadInput."""
    asked = args.tls or args.ca or args.cert or args.key or args.tls_name
    tls = Tls(args.ca or b"", args.cert or b"", args.key or b"", args.tls_name)
    return Client(args.address, caller_id=caller_id, tls=tls if asked else False, insecure=args.insecure)
