"""The processes that this one has started, and theirs."""

import contextlib
from typing import Any

import psutil


def descendants() -> list[dict[str, Any]]:
    """`pid`, `ppid` and `cmdline` of each, without those that end meanwhile."""
    found = list[dict[str, Any]]()
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found.append(each.as_dict(["pid", "ppid", "cmdline"]))
    return found
