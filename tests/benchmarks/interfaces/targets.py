"""Targets of h2load: a method of gRPC, or a path of HTTP, with one body."""

import json
import struct
import urllib.request
from pathlib import Path
from typing import Any

import grpc

from tests.benchmarks.peers.h2load import Target


def of_grpc(address: str, method: str, message: bytes, body: Path) -> Target:
    with grpc.insecure_channel(address) as channel:
        answer: bytes = channel.unary_unary(method)(message, timeout=10, wait_for_ready=True)
    body.write_bytes(b"\0" + struct.pack(">I", len(message)) + message)
    return Target(f"http://{address}{method}", body, 5 + len(answer))


def of_http(url: str, asked: dict[str, Any], body: Path) -> Target:
    body.write_text(json.dumps(asked))
    request = urllib.request.Request(url, body.read_bytes(), {"content-type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=10) as page:  # noqa: S310 - of this host
        page.read()
    return Target(url, body, 0, grpc=False)
