"""A local S3 server for `make demo STORE=s3`: what machines share is in its bucket instead of a folder."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from tandem_stack.checks import Problem

_BUCKET = "tandem"


@contextmanager
def serving(kind: str) -> Iterator[str]:
    """The URL of a bucket; empty for a local disk. The environment names the server, as it would name a cloud's.
    Raises: Problem for another kind."""
    if not kind:
        yield ""
        return
    if kind != "s3":
        raise Problem(f"STORE={kind}: expected s3, or nothing for the local disk")
    # A package of tests: `make setup` has it, images do not.
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://{host}:{port}",
        AWS_ALLOW_HTTP="true",
        AWS_REGION="us-east-1",
        AWS_ACCESS_KEY_ID="demo",
        AWS_SECRET_ACCESS_KEY="demo",  # noqa: S106 (of a server that asks for any)
    )
    try:
        boto3.client("s3").create_bucket(Bucket=_BUCKET)
        yield f"s3://{_BUCKET}/demo"
    finally:
        server.stop()
