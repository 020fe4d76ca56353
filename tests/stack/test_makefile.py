"""The Makefile's targets explain themselves."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.stack.helpers import REPOSITORY

pytestmark = pytest.mark.heavy


def test_help_lists_every_target() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.MULTILINE))

    done = subprocess.run(["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True)

    listed = dict(re.findall(r"^  make (\S+) +(\S.*)$", done.stdout, re.MULTILINE))
    assert targets >= {"help", "demo", "up", "test", "check", "proto", "proof", "setup", "release", "clean"}
    assert set(listed) == targets


def test_every_target_is_phony() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()

    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)

    assert set(phony.split()) == set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.MULTILINE))


def outside_make() -> dict[str, str]:
    """The environment without what `make test` adds to it: a make inside another one prints more."""
    return {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}


def fake_runtime(folder: Path, code: str) -> list[str]:
    """Makefile variables: nothing is set up, and the runtime's Python runs `code`."""
    program = folder / "python"
    program.write_text(f"#!{sys.executable}\n{code}")
    program.chmod(0o755)
    return ["PYTHON=true", f"RUNTIME={program}"]


def test_ctrl_c_ends_make_up_without_an_error_of_makes(tmp_path: Path) -> None:
    # As a stack, it ends after make has seen the signal: make 4.3 fails if it reaped its child before that.
    waits = """import os, re, signal
def make_catches():
    (caught,) = re.findall(r'SigCgt:\\s(\\w+)', open(f'/proc/{os.getppid()}/status').read())
    return int(caught, 16) >> signal.SIGINT - 1 & 1
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
assert make_catches()
print('ready', flush=True)
signal.sigwait([signal.SIGINT])
while make_catches():
    pass
print('stopped')
"""
    command = ["make", "up", *fake_runtime(tmp_path, waits)]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=outside_make(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    ) as make:
        assert make.stdout
        assert make.stdout.readline() == "ready\n"
        # As a terminal does: to the whole group.
        os.killpg(make.pid, signal.SIGINT)
        assert make.stdout.read() == "stopped\n"


def test_the_demo_is_told_when_make_began(tmp_path: Path) -> None:
    before = int(time.time())
    tells = "import os\nprint(os.environ['DEMO_STARTED'])\n"
    command = ["make", "demo", *fake_runtime(tmp_path, tells)]
    done = subprocess.run(command, cwd=REPOSITORY, env=outside_make(), capture_output=True, text=True, check=True)
    assert before <= int(done.stdout) <= time.time()
