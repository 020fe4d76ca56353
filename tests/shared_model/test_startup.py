"""The first acts of every program."""

import signal
import subprocess
import sys

import pytest

#: Background jobs of a shell ignore Ctrl-C, and so would what they start.
PROGRAM = """
import signal
from shared_model import startup
signal.signal(signal.SIGINT, signal.default_int_handler)
startup.begin()
{ends}
"""


def ended(ends: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM.format(ends=ends)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.heavy
def test_ctrl_c_ends_a_program_with_one_line_as_the_signal_does() -> None:
    done = ended("signal.raise_signal(signal.SIGINT)")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "interrupted\n")


@pytest.mark.heavy
def test_control_another_exception_keeps_its_traceback() -> None:
    done = ended("1 / 0")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
