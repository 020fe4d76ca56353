"""Environments of the peers, one each in `.tandem/peers/`, made when they are missing, or packages or Python changed.

They have Tandem's own Python, because one that was built with optimisations runs the same code in two thirds of the
time; Triton's Python needs a shared library, which Debian's has.
"""

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.harness import REPOSITORY, CannotMeasure

FOLDER = REPOSITORY / ".tandem" / "peers"
_PYTHONS = {"grpc": sys.executable, "litserve": sys.executable, "triton": "/usr/bin/python3"}
_SAME_AS_OURS = ("openvino", "tokenizers")
_PACKAGES = {
    "grpc": ("grpcio", "protobuf"),
    "litserve": ("litserve==0.2.19",),
    "triton": ("nvidia-pytriton==0.7.0",),
}


def python(name: str) -> str:
    """The Python of an environment. Raises: CannotMeasure with one line where it cannot be made."""
    packages = [*_PACKAGES[name], *(f"{it}=={importlib.metadata.version(it)}" for it in _SAME_AS_OURS)]
    folder, wanted = FOLDER / name, "\n".join([_PYTHONS[name], *packages])
    installed = folder / "installed"
    if not (installed.exists() and installed.read_text() == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        _run(name, [_PYTHONS[name], "-m", "venv", str(folder)])
        _run(name, [str(folder / "bin/pip"), "install", "--quiet", *packages])
        installed.write_text(wanted)
    return str(folder / "bin/python")


def h2load() -> str:
    """The path of the load generator. Raises: CannotMeasure."""
    if found := shutil.which("h2load"):
        return found
    raise CannotMeasure("h2load is not installed; Debian has it: apt-get install nghttp2-client")


def _run(name: str, command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise CannotMeasure(f"the environment of {name} cannot be made: {lines[-1]}") from error


def path_of(name: str) -> Path:
    """A server's script."""
    return Path(__file__).parent / "servers" / f"{name}.py"
