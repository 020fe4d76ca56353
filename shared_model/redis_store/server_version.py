"""Which redis-server is used, and whether it lacks fixes of known vulnerabilities."""

import re
import subprocess

#: The first version of each series with the fixes of CVE-2025-49844, 46817, 46818 and 46819 (Lua). Later series have
#: them from their start.
_FIXED = {(6, 2): (6, 2, 20), (7, 2): (7, 2, 11), (7, 4): (7, 4, 6), (8, 0): (8, 0, 4), (8, 2): (8, 2, 2)}
#: Debian 12's; its `--version` does not tell its revision.
_DEBIAN, _DEBIAN_FIXED = (7, 0, 15), "5:7.0.15-1~deb12u6"

Version = tuple[int, int, int]


def of(binary: str) -> Version:
    """The version of a redis-server; zeros where it does not say."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    found = re.search(r" v=(\S+)", said)
    return parse(found[1] if found else "")


def parse(text: str) -> Version:
    """Zeros for what is no version."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)


def advice(version: Version) -> str:
    """The remedy for an operator of this version; empty if nothing is known against it."""
    if version == _DEBIAN:
        return f"on Debian 12 it needs package version {_DEBIAN_FIXED} or later: `dpkg -s redis-server` tells"
    fixed = _FIXED.get(version[:2])
    if (fixed is None and version >= (8, 3, 0)) or (fixed is not None and version >= fixed):
        return ""
    return "it lacks fixes of known vulnerabilities; install redis-server 7.2.11, 7.4.6, 8.0.4, 8.2.2 or later"
