"""A variable that no part of Tandem reads is warned of: once, with the nearest name, and nothing fails."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shared_model import variables


def warned(environ: dict[str, str]) -> list[str]:
    stream = io.StringIO()
    variables.warn(environ, stream)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("TANDEM_SCOERS", ": did you mean TANDEM_SCORES?"),
        ("TANDEM_LATENCY_MAXROWS", ": did you mean TANDEM_LATENCY_MAX_ROWS?"),
        ("TANDEM_THROUGHPUT_MAX_DELAY", ": did you mean TANDEM_THROUGHPUT_MAX_DELAY_MS?"),
        ("TANDEM_QUARANTINE_SECONDS", " any more; CHANGELOG.md says why"),
        ("TANDEM_QWFP", "; the packages' README.md list them all"),
    ],
)
def test_a_mistyped_name_is_told_with_the_nearest(name: str, nearest: str) -> None:
    assert warned({name: "x"}) == [f"warning: {name} is set, and Tandem has no such setting{nearest}"]


def test_what_is_known_or_not_ours_is_no_stranger() -> None:
    kubernetes = {"TANDEM_GRPC_SERVICE_HOST": "10.0.0.1", "TANDEM_GRPC_SERVICE_PORT": "1", "TANDEM_GRPC_PORT": "tcp://"}
    kubernetes |= {"TANDEM_GRPC_PORT_50051_TCP_ADDR": "10.0.0.1"}
    assert warned(dict.fromkeys(variables.KNOWN, "x") | {"REDIS_URL": "x", "TANDEMX": "y"} | kubernetes) == []


def test_each_name_is_told_once_also_to_children() -> None:
    environ = {"TANDEM_SCOERS": "x"}
    assert len(warned(environ)) == 1
    environ["TANDEM_STAET"] = "x"
    assert ["TANDEM_STAET" in line for line in warned(environ)] == [True]
    assert warned(environ) == []


@pytest.mark.heavy
@pytest.mark.parametrize("package", ["shared_model", "batch_job", "realtime_service", "tandem_stack"])
def test_every_program_warns_when_it_starts(package: str) -> None:
    root = Path(__file__).parents[2]
    environ = {**os.environ, "TANDEM_SCOERS": "x", "PYTHONPATH": f"{root}:{root / '.stack'}"}
    command = [sys.executable, "-m", package, "--help"]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, cwd=root)
    (line,) = ended.stderr.splitlines()
    assert line.startswith("warning: TANDEM_SCOERS is set")
