"""python -m tandem_stack.wheel [FOLDER]: build the distribution, whose modules are all in one package of its own.

Names as general as `protos` must not stand in anybody's site-packages, so the repository's folders become packages of
`tandem_scoring`, and what they import of each other gets that prefix, as pip does with the libraries that it vendors.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tandem_stack.checks import Problem
from tandem_stack.progress import complain, say
from tandem_stack.uv import ROOT, Uv

NAME = "tandem_scoring"
FOLDERS = ("batch_job", "protos", "realtime_service", "shared_model")
#: Files of the project that its metadata name.
_METADATA = ("pyproject.toml", "README.md", "LICENSE")
_FOLDER = "|".join(FOLDERS)
_IMPORT = re.compile(rf"^( *from )(?=(?:{_FOLDER})\b[\w.]* import )", re.MULTILINE)
#: Commands in messages and help, and the names that generated modules give to their messages.
_NAMED = re.compile(rf"(?<=-m )(?=(?:{_FOLDER})\b)|(?<=')(?=(?:{_FOLDER})\.[\w.]+_pb2')")


def main(folder: str = ".tandem/dist") -> int:
    target = ROOT / folder
    try:
        with tempfile.TemporaryDirectory(prefix="tandem-wheel-") as staged:
            stage(Path(staged))
            build(Path(staged), target)
    except Problem as problem:
        complain(f"wheel: {problem}")
        return 2
    say(f"wheel: {max(target.glob('*.whl'), key=lambda it: it.stat().st_mtime)}")
    return 0


def stage(folder: Path) -> None:
    """Write the sources of the distribution. Raises: Problem outside a checkout, which knows what belongs to it."""
    files, package = _files(), folder / NAME
    package.mkdir()
    (package / "__init__.py").write_text('"""Tandem: batch_job, realtime_service and what they share."""\n')
    for name in _METADATA:
        shutil.copy(ROOT / name, folder)
    for path in files:
        target = package / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in (".py", ".pyi", ".md"):
            target.write_text(prefixed((ROOT / path).read_text()))
        else:
            shutil.copy(ROOT / path, target)


def prefixed(source: str) -> str:
    """The text of a module or page with the packages as parts of NAME."""
    return _NAMED.sub(f"{NAME}.", _IMPORT.sub(rf"\1{NAME}.", source))


def build(folder: Path, target: Path) -> None:
    """Raises: Problem with the builder's last line."""
    tool = Uv.find()
    # The lock file has the backend, so nothing is fetched.
    options = ("--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(target))
    command = [tool.program, "build", *options, str(folder)]
    done = subprocess.run(command, env=tool.environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Problem([*done.stderr.splitlines(), "uv build failed"][-1])


def _files() -> list[Path]:
    """Files of the packages, without those that git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "--", *FOLDERS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        raise Problem(f"needs a git checkout: {listed.stderr.strip()}")
    return [path for path in map(Path, listed.stdout.splitlines()) if (ROOT / path).is_file()]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
