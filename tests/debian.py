"""Programs of Debian's packages for tests: unpacked, not installed, so that no service starts."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


#: Of docker-compose, whose packages have no more than Python modules.
_COMPOSE = (
    "docker-compose",
    *(
        f"python3-{name}"
        for name in (
            "attr",
            "certifi",
            "chardet",
            "distro",
            "docker",
            "dockerpty",
            "docopt",
            "dotenv",
            "idna",
            "jsonschema",
            "pkg-resources",
            "pyrsistent",
            "requests",
            "six",
            "texttable",
            "urllib3",
            "websocket",
            "yaml",
        )
    ),
)


def program(package: str, name: str) -> str:
    """The path of a program: that on PATH, else that of a package, which is downloaded once. It never skips."""
    return shutil.which(name) or str(unpacked(package) / "usr" / "bin" / name)


def with_its_files(package: str, name: str) -> list[str]:
    """The command of a program that looks for its package's files in /usr/share: unpacked ones are laid over it, for
    this process alone."""
    if found := shutil.which(name):
        return [found]
    folder = unpacked(package) / "usr"
    laid = f"mount -t overlay overlay -o lowerdir={folder / 'share'}:/usr/share /usr/share"
    script = f'{laid} && exec {folder / "bin" / name} "$@"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", script, name]


def docker_compose() -> tuple[list[str], dict[str, str]]:
    """The command docker-compose and its environment; it needs no engine to read a file."""
    if found := shutil.which("docker-compose"):
        return [found], {}
    modules = (unpacked(package) / "usr" / "lib" / "python3" / "dist-packages" for package in _COMPOSE)
    return [sys.executable, "-m", "compose"], {"PYTHONPATH": os.pathsep.join(map(str, modules))}


def unpacked(package: str) -> Path:
    """The folder with a package's files, which is downloaded once; without what it depends on."""
    folder = REPOSITORY / ".tandem" / "debian" / package
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{package}.lock").open("w") as lock:
        # Workers of one run look at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _download(package, folder)
    return folder


def _download(package: str, unpacked: Path) -> None:
    part = unpacked.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    download = ["apt-get", "--quiet", "-o", "APT::Sandbox::User=root", "download", package]
    if _failed(download, part) and os.geteuid() == 0:
        _failed(["apt-get", "--quiet", "update"], part)
    if not list(part.glob("*.deb")) and (said := _failed(download, part)):
        pytest.fail(f"{package}: install it, or let apt-get download it: {said}", pytrace=False)
    (archive,) = part.glob("*.deb")
    subprocess.run(["dpkg-deb", "--extract", archive, part], check=True)
    part.rename(unpacked)


def _failed(command: list[str], folder: Path) -> str:
    """The last line of a command that failed; empty if it did not."""
    try:
        ended = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    except FileNotFoundError as error:
        return str(error)
    return (ended.stderr.strip().splitlines() or ["no reason given"])[-1] if ended.returncode else ""
