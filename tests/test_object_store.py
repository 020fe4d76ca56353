"""The S3 server of the tests ends with the process that uses it, in whatever way that ends."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

REPOSITORY = Path(__file__).parents[1]

#: As the fixture of the session, with a test inside it.
USER = """
import os, signal, psutil
from tests import object_store
with object_store.s3("tandem") as proxy:
    (server,) = psutil.Process().children()
    print(server.pid, proxy.url, flush=True)
    {ends}
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ("raise AssertionError('a test that fails')", 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_the_server_ends_with_its_user(ends: str, code: int) -> None:
    command = [sys.executable, "-c", USER.format(ends=ends)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    pid, url = done.stdout.split()
    assert url.startswith("http://127.0.0.1:")
    if psutil.pid_exists(int(pid)):
        psutil.Process(int(pid)).wait(timeout=30)
