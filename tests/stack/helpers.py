"""Running the stack's own entry points as a person's shell would."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def run_python(*arguments: str, environ: Mapping[str, str] = os.environ) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        env={**environ, "PYTHONPATH": str(REPOSITORY / ".stack")},
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def only_line(text: str) -> str:
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


def write_script(folder: Path, name: str, body: str) -> Path:
    """A shell script that can be run; it gets an absolute shell, for a PATH that holds nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / name
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return script
