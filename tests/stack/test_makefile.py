"""The Makefile's targets explain themselves."""

import re
import subprocess

from tests.stack.helpers import REPOSITORY


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
