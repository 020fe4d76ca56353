"""A headless Chromium that drives Airflow's UI as an operator does."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

#: Programs of Debian, Ubuntu and Google, and Debian's package.
_PROGRAMS, _PACKAGE = ("chromium", "chromium-browser", "google-chrome"), "chromium"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Its own event loop runs in this thread until the end: no test of the same time may be asynchronous."""
    with sync_playwright() as playwright:
        # As root, as in CI, Chromium has no sandbox of its own.
        own = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program(), args=own)
        yield browser
        browser.close()


def program() -> str:
    """The browser's path. Installed where that is ours to do (root, apt), as Java is by set-up."""
    if not (found := _found()) and os.geteuid() == 0 and shutil.which("apt-get"):
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", _PACKAGE]):
            subprocess.run(command, env=environ, check=True, stdin=subprocess.DEVNULL)
        found = _found()
    assert found, f"no {' or '.join(_PROGRAMS)} on PATH: `apt-get install {_PACKAGE}`"
    return found


def _found() -> str:
    return next(filter(None, map(shutil.which, _PROGRAMS)), "")
