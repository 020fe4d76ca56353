"""python -m tandem_stack.uv ARGUMENTS: run uv, after installing it if needed.

uv installs the environments from their lock files, with the indexes, local wheels and certificates that pip's settings
name. Run by the system's Python before any environment exists: standard library only.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem_stack.checks import Problem
from tandem_stack.progress import complain, step

#: The version that is installed. One on the PATH is taken if it is not older.
VERSION = "0.13.9"
ROOT = Path(__file__).absolute().parents[2]
#: Setting of pip → variable of uv, and what separates several values of it.
_VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
    "proxy": ("ALL_PROXY", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
}


@dataclass(frozen=True)
class Uv:
    """The program, the environment and the options with which it finds what pip would find here."""

    program: str
    environ: Mapping[str, str]
    options: tuple[str, ...]

    @classmethod
    def find(cls) -> "Uv":
        """Raises: Problem when it cannot be installed."""
        pip = pip_settings()
        return cls(program(), environment(pip), options(pip))

    @property
    def names_an_index(self) -> bool:
        """Whether the user has chosen an index instead of PyPI, or none."""
        return bool(self.options) or not self.environ.keys().isdisjoint(("UV_DEFAULT_INDEX", "UV_INDEX_URL"))


def program() -> str:
    """The path of uv. Raises: Problem when it cannot be installed."""
    on_path = shutil.which("uv")
    if on_path and _version(on_path) >= tuple(map(int, VERSION.split("."))):
        return on_path
    folder = ROOT / ".tandem" / f"uv-{VERSION}"
    if not folder.exists():
        with step(f"installing uv {VERSION}"):
            _install(folder)
    return str(folder / "bin" / "uv")


def _version(program: str) -> tuple[int, ...]:
    """Empty, which is older than any version, when it does not say."""
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.match(r"uv (\d+)\.(\d+)\.(\d+)", answer.stdout)
    return tuple(map(int, found.groups())) if found else ()


def _install(folder: Path) -> None:
    """With pip, which reads its own settings. The folder has its name only when it is complete."""
    part = folder.with_name(f"{folder.name}.part")
    venv.create(part, clear=True, with_pip=True)
    command = [str(part / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", f"uv=={VERSION}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Problem(f"uv {VERSION}: {errors[-1].removeprefix('ERROR: ') if errors else 'pip failed'}")
    part.rename(folder)


def pip_settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """pip's settings by option; the environment wins over `install` in a file, that over `global`.

    A Python without pip has those of the environment alone.
    """
    command = [sys.executable, "-m", "pip", "config", "list"]
    shown = subprocess.run(command, env=dict(environ), capture_output=True, text=True, check=False).stdout
    lines = [line.partition("=") for line in shown.splitlines()]
    found: dict[str, str] = {}
    for section in ("global.", "install."):
        found |= {name.removeprefix(section): ast.literal_eval(it) for name, _, it in lines if name.startswith(section)}
    given = {name[4:].lower().replace("_", "-"): it for name, it in environ.items() if it and name.startswith("PIP_")}
    return {**found, **given}


def environment(pip: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment in which uv finds what pip would find with the settings `pip`. uv's own variables win."""
    translated = {
        variable: separator.join(map(os.path.expanduser, pip[option].split()))
        for option, (variable, separator) in _VARIABLES.items()
        if pip.get(option)
    }
    # As pip does: the best version that any index has, not only the first index that knows the package.
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_PYTHON_DOWNLOADS": "never", **translated, **environ}


def options(pip: Mapping[str, str]) -> tuple[str, ...]:
    """What of pip's settings uv takes only as an option."""
    return ("--no-index",) if pip.get("no-index", "").lower() in ("1", "y", "yes", "true", "t", "on") else ()


if __name__ == "__main__":
    try:
        os.execv(program(), ["uv", *sys.argv[1:]])  # noqa: S606
    except Problem as problem:
        complain(str(problem))
        sys.exit(2)
