"""python -m tandem_stack.environments: make the two environments what their lock files say.

Run by the system's Python before any environment exists: standard library only. An environment carries a stamp of
what it was made from; the stamp comes last, so that an interrupted installation is done again from nothing.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tandem_stack import checks
from tandem_stack.checks import Problem
from tandem_stack.progress import complain, say, step

ROOT = Path(__file__).absolute().parents[2]


@dataclass(frozen=True)
class Environment:
    """One virtual environment. With `project`, the repository itself is installed into it, editable."""

    name: str
    root: Path
    folder: str
    lock: str
    project: bool

    @property
    def prefix(self) -> Path:
        return self.root / self.folder

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"

    @property
    def lock_file(self) -> Path:
        return self.root / self.lock

    @property
    def stamp_file(self) -> Path:
        return self.prefix / "tandem-stamp.json"

    def stamp(self) -> dict[str, str]:
        """What the environment is made from. Its place is part of it: scripts in it carry absolute paths."""
        return {
            "prefix": str(self.prefix),
            "python": sys.version.split()[0],
            "lock": hashlib.sha256(self.lock_file.read_bytes()).hexdigest(),
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
        Environment("runtime", root, ".venv", "requirements-runtime.lock", project=True),
        Environment("airflow", root, ".venv-airflow", "requirements-airflow.lock", project=False),
    )


def ensure(wanted: Iterable[Environment], logs: Path) -> None:
    """Install what is not as its lock file says, all at once.

    Raises: Problem naming the environment, pip's last error and its log.
    """
    missing = [environment for environment in wanted if not environment.is_ready()]
    if not missing:
        return
    if any(not environment.prefix.exists() for environment in missing):
        checks.need_disk(missing[0].root)
    logs.mkdir(parents=True, exist_ok=True)
    names = " and ".join(environment.name for environment in missing)

    def state() -> str:
        return ", ".join(f"{environment.name} {_progress(environment, logs)}" for environment in missing)

    with step(f"installing the {names} environment", state), ThreadPoolExecutor(len(missing)) as pool:
        for _ in pool.map(lambda environment: _install(environment, _log(environment, logs)), missing):
            pass


def _install(environment: Environment, log_file: Path) -> None:
    found, wanted = environment.found_stamp(), environment.stamp()
    environment.stamp_file.unlink(missing_ok=True)
    # Only another lock file can be followed in place: anything else starts from nothing.
    if found.get("prefix") != wanted["prefix"] or found.get("python") != wanted["python"]:
        shutil.rmtree(environment.prefix, ignore_errors=True)
        venv.create(environment.prefix, with_pip=True)
    pip = [str(environment.python), "-m", "pip", "--disable-pip-version-check", "install"]
    steps = [[*pip, "-r", str(environment.lock_file)]]
    if environment.project:
        steps.append([*pip, "--no-deps", "--no-build-isolation", "-e", str(environment.root)])
    with open(log_file, "wb") as log:
        for command in steps:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
            if done.returncode:
                raise Problem(f"{environment.name} environment: {_last_error(log_file)}; all of it: {log_file}")
    environment.stamp_file.write_text(json.dumps(wanted))


def _log(environment: Environment, logs: Path) -> Path:
    return logs / f"install-{environment.name}.log"


def _progress(environment: Environment, logs: Path) -> str:
    """How far pip's log says it is."""
    try:
        log = _log(environment, logs).read_text(errors="replace")
    except OSError:
        return "starting"
    if environment.stamp_file.exists():
        return "ready"
    if "Installing collected packages" in log:
        return "unpacking"
    total = sum("==" in line for line in environment.lock_file.read_text().splitlines())
    return f"{min(log.count('Collecting '), total)} of {total} packages fetched"


def _last_error(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
    return lines[-1].removeprefix("ERROR: ") if lines else "pip failed"


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
