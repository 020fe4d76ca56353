"""python -m tandem_stack.environments: make the two environments what their lock files say.

Run by the system's Python before any environment exists: standard library only. An environment carries a stamp of
what it was made from; the stamp comes last, so that an interrupted installation is done again from nothing.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tandem_stack import checks
from tandem_stack.checks import Problem
from tandem_stack.progress import complain, last_line, say, step
from tandem_stack.uv import ROOT, Uv

#: pyspark comes as a source distribution of 400 MB of jars. Its wheel lives for seconds: not compressed it is made in
#: half the time.
_BUILD = ("--config-settings-package", "pyspark:--build-option=--compression=stored")
_CPU_INDEX = ("--torch-backend", "cpu")


@dataclass(frozen=True)
class Environment:
    """One virtual environment. With `project`, the repository itself is installed into it, editable. `tools`: the lock
    file of what tests and checks need besides. `disk_bytes`: what making it from nothing takes, with the downloads on
    their way."""

    name: str
    root: Path
    prefix: Path
    lock_file: Path
    project: bool
    tools: Path | None = None
    disk_bytes: int = 0

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"

    @property
    def lock_files(self) -> list[Path]:
        return [path for path in (self.lock_file, self.tools) if path]

    @property
    def stamp_file(self) -> Path:
        return self.prefix / "tandem-stamp.json"

    def stamp(self) -> dict[str, str]:
        """What the environment is made from. Its place is part of it: scripts in it carry absolute paths."""
        return {
            "installer": "uv",
            "prefix": str(self.prefix),
            "python": sys.version.split()[0],
            "lock": hashlib.sha256(b"".join(path.read_bytes() for path in self.lock_files)).hexdigest(),
        }

    def found_stamp(self) -> dict[str, str]:
        """Empty when there is no environment, or an unfinished one."""
        try:
            found = json.loads(self.stamp_file.read_bytes())
        except (OSError, ValueError):
            return {}
        return found if self.python.exists() and isinstance(found, dict) else {}

    def is_ready(self) -> bool:
        return self.found_stamp() == self.stamp()


def environments(root: Path = ROOT) -> tuple[Environment, Environment]:
    return (
        Environment(
            "runtime",
            root,
            root / ".venv",
            root / "requirements-runtime.lock",
            project=True,
            tools=root / "requirements-development.lock",
            disk_bytes=5 * 1024**3,
        ),
        Environment(
            "airflow",
            root,
            root / ".venv-airflow",
            root / "requirements-airflow.lock",
            project=False,
            disk_bytes=1024**3,
        ),
    )


def ensure(wanted: Iterable[Environment], logs: Path) -> None:
    """Install what is not as its lock file says, all at once.

    Raises: Problem naming the environment, uv's error and its log.
    """
    missing = [environment for environment in wanted if not environment.is_ready()]
    if not missing:
        return
    for environment in missing:
        if environment.prefix.is_symlink():
            link = f"{environment.prefix} is a link to {environment.prefix.resolve()}"
            raise Problem(f"{link}, which may be in use: remove the link, or go there")
    new = [environment for environment in missing if not environment.prefix.exists()]
    if new:
        checks.need_disk(new[0].root, sum(environment.disk_bytes for environment in new))
    # The state folder, too, which holds texts and keys later.
    logs.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    logs.mkdir(exist_ok=True)
    tool = Uv.find()
    installers = [Installer(tool, environment, logs / f"install-{environment.name}.log") for environment in missing]
    names = " and ".join(environment.name for environment in missing)

    def state() -> str:
        return ", ".join(f"{it.environment.name}: {last_line(it.log, 'starting')}" for it in installers)

    with step(f"installing the {names} environment", state), ThreadPoolExecutor(len(missing)) as pool:
        for _ in pool.map(Installer.run, installers):
            pass


class Installer:
    """Makes one environment with uv, whose output goes to `log`."""

    def __init__(self, tool: Uv, environment: Environment, log: Path) -> None:
        self._uv = tool
        self.environment = environment
        self.log = log
        log.write_bytes(b"")

    def run(self) -> None:
        """Raises: Problem with uv's error in one line, and its log."""
        environment = self.environment
        found, wanted = environment.found_stamp(), environment.stamp()
        environment.stamp_file.unlink(missing_ok=True)
        # Only another lock file can be followed in place: anything else starts from nothing.
        if {**found, "lock": ""} != {**wanted, "lock": ""}:
            self._call("venv", "--clear", "--no-project", "--python", sys.executable, str(environment.prefix))
        locks = [word for path in environment.lock_files for word in ("-r", str(path))]
        self._pip("--exact", *_BUILD, *self.torch_options(), *locks)
        if environment.project:
            self._pip("--no-deps", "--no-build-isolation", "-e", str(environment.root))
        environment.stamp_file.write_text(json.dumps(wanted))

    def torch_options(self) -> tuple[str, ...]:
        """Options that choose the build of torch, which the lock file leaves open, and a line that says which.

        Without an NVIDIA driver that is a CPU build where the user's indexes or local wheels have one, or PyTorch's own
        CPU index, as long as the user names no index of their own. Others bring gigabytes of CUDA libraries.
        """
        pin = re.search(r"^torch==\S+", self.environment.lock_file.read_text(), re.MULTILINE)
        if not pin:
            return ()
        chosen, options = self._resolve(pin[0]), tuple[str, ...]()
        if "+" in chosen or not chosen:
            source = f"{chosen or pin[0]}, from your indexes or local wheels"
        elif has_nvidia_driver():
            source = f"{chosen} with its CUDA libraries, for this host's NVIDIA driver"
        elif not self._uv.names_an_index and (chosen := self._resolve(pin[0], *_CPU_INDEX)):
            source, options = f"{chosen} from PyTorch's CPU index, because this host has no NVIDIA driver", _CPU_INDEX
        else:
            source = f"{pin[0]} with CUDA libraries, because no CPU build is in reach; PIP_FIND_LINKS can name one"
        say(f"torch: {source}")
        return options

    def _pip(self, *arguments: str) -> None:
        # Compiled once here: where bytecode may not be written later, each process would compile what it imports.
        options = ("--compile-bytecode", *self._uv.options, "--python", str(self.environment.python))
        self._call("pip", "install", *options, *arguments)

    def _call(self, *arguments: str) -> None:
        with open(self.log, "ab") as log:
            command, nothing = [self._uv.program, *arguments], subprocess.DEVNULL
            done = subprocess.run(command, env=self._uv.environ, stdin=nothing, stdout=log, stderr=log, check=False)
        if done.returncode:
            error = one_line(self.log.read_text(errors="replace"))
            raise Problem(f"{self.environment.name} environment: {error}; all of it: {self.log}")

    def _resolve(self, pin: str, *arguments: str) -> str:
        """The build that would be installed, as name==version; empty when there is none."""
        options = ("--quiet", "--no-deps", "--no-header", "--no-annotate", "--python", str(self.environment.python))
        done = subprocess.run(
            [self._uv.program, "pip", "compile", *options, *self._uv.options, *arguments, "-"],
            env={**self._uv.environ, "UV_HTTP_RETRIES": "0"},
            input=pin,
            capture_output=True,
            text=True,
            check=False,
        )
        return "" if done.returncode else done.stdout.strip()


def has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or bool(shutil.which("nvidia-smi"))


def one_line(log: str) -> str:
    """uv's last error with its causes, up to an empty line."""
    _, found, error = log.rpartition("error: ")
    parts = [line.strip().removeprefix("cause: ") for line in error.partition("\n\n")[0].splitlines()]
    return ": ".join(filter(None, parts)) if found else "uv failed"


def main() -> int:
    try:
        checks.need_java()
        ensure(environments(), ROOT / ".tandem" / "logs")
    except Problem as problem:
        complain(f"setup: {problem}")
        return 2
    except KeyboardInterrupt:
        say("interrupted; the next run starts the unfinished environment again")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
