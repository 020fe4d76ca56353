"""A real Azure Blob server (Azurite), for proofs: it is a package of npm, and Node is no part of set-up."""

import base64
import hashlib
import hmac
import http.client
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from email.utils import formatdate
from pathlib import Path

VERSION = "3.37.0"
_FOLDER = Path(__file__).parents[1] / ".tandem" / "azurite"
_SERVER = _FOLDER / "node_modules" / ".bin" / "azurite-blob"
#: Those of every Azurite, which its documentation names.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_LISTENS = re.compile(r"success\w* listen\w* (?:on|at) http://(\S+)")


@contextmanager
def azurite(container: str) -> Iterator[dict[str, str]]:
    """The environment of its clients, for a server with one container."""
    _install()
    command = [str(_SERVER), "--inMemoryPersistence", "--disableTelemetry", "--blobPort", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            found = next(filter(None, map(_LISTENS.search, process.stdout)))
            _create(found[1], container)
            yield {
                "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
                "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
                "AZURE_STORAGE_ENDPOINT": f"http://{found[1]}/{_ACCOUNT}",
                "AZURE_ALLOW_HTTP": "true",
            }
        finally:
            process.kill()


def _install() -> None:
    """By npm, once."""
    if not _SERVER.exists():
        assert shutil.which("npm"), "no npm, which installs Azurite: install Node 18 or newer"
        packages = ["--no-fund", "--no-audit", "--prefix", str(_FOLDER), f"azurite@{VERSION}"]
        subprocess.run(["npm", "install", *packages], check=True)


def _create(server: str, container: str) -> None:
    """Make a container by a signed request: obstore makes none."""
    path = f"/{_ACCOUNT}/{container}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    named = "".join(f"{name}:{value}\n" for name, value in headers.items())
    signed = f"PUT{12 * chr(10)}{named}/{_ACCOUNT}{path}\nrestype:container"
    signature = hmac.digest(base64.b64decode(_KEY), signed.encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(signature).decode()}"
    with closing(http.client.HTTPConnection(server)) as connection:
        connection.request("PUT", f"{path}?restype=container", headers=headers)
        assert connection.getresponse().status == 201
