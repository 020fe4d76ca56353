"""What a machine must have before anything is started: each lack is one line. Standard library only."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

#: Spark 4.3 needs this Java or a newer one.
OLDEST_JAVA = 17
_JRE_PACKAGE = f"openjdk-{OLDEST_JAVA}-jre-headless"


class Problem(Exception):
    """Something the machine lacks or a step that failed. Its text is one line a person can act on."""


def need_ports(ports: Mapping[str, tuple[str, int]]) -> None:
    """`ports` maps what wants a port to (host, port).

    Raises: Problem naming every port that somebody else has.
    """
    taken = [f"port {port} ({who})" for who, (host, port) in ports.items() if not _is_free(host, port)]
    if taken:
        raise Problem(f"already taken: {', '.join(taken)}; stop what listens there or choose other ports")


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Connections of an earlier run that linger do not make a port taken; a listener does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def need_disk(folder: Path, needed: int) -> None:
    """Raises: Problem when the file system of `folder` has less than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Problem(f"{folder}: {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB needed for the first set-up")


def need_java() -> None:
    """Find a Java that Spark runs on; install one where that is ours to do (root, apt).

    Raises: Problem saying what to install.
    """
    # As Spark does: JAVA_HOME wins over the PATH.
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    found = _java_version(java)
    if found < OLDEST_JAVA and not home and os.geteuid() == 0 and shutil.which("apt-get"):
        _install_java()
        found = _java_version(java)
    if found < OLDEST_JAVA:
        has = f"{java} is Java {found}" if found else "no Java found"
        wanted = f"{OLDEST_JAVA} or newer, e.g. `apt-get install {_JRE_PACKAGE}`, or set JAVA_HOME"
        raise Problem(f"{has}: Spark needs {wanted}")


def _java_version(java: str) -> int:
    """The major version; 0 when there is none."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(\d+)', answer.stderr)
    return int(found.group(1)) if found else 0


def _install_java() -> None:
    from tandem_stack.progress import step

    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with step(f"no Java found; installing {_JRE_PACKAGE} with apt"):
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", _JRE_PACKAGE]):
            # A failure shows as Java still missing, and that has its own line.
            subprocess.run(command, env=environ, check=False, **quiet)  # type: ignore[call-overload]
