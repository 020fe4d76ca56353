"""A real disk that is full: one line, an exit code, the old day as it was; with room again the run goes on.

Only root may mount one, so these are proofs; `test_resume.py` has executors that cannot write, in every run.
"""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_job.checks.examination import examine
from batch_job.launch import exit_codes
from batch_job.run_record import Findings, State
from batch_job.steps import score as job
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY
from tests.integration.nightly.conftest import SHARDS, House, check_complete, old_rows

pytestmark = pytest.mark.proof

_BLOCK = 4096


@pytest.fixture
def state(state: StateSettings, tmp_path: Path) -> Iterator[StateSettings]:
    """On a disk of 4 MB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tandem", disk], check=True)
    try:
        yield replace(state, state=disk / "state")
    finally:
        subprocess.run(["umount", disk], check=True)


def fill(state: StateSettings, blocks: int) -> Path:
    """Take up all room but so many blocks; returns the file that does."""
    ballast = state.state / "ballast"
    room = os.statvfs(state.state).f_bavail - blocks
    ballast.write_bytes(bytes(room * _BLOCK))
    return ballast


def score(house: House) -> int:
    return exit_codes.exit_code("score", lambda: job.score(DAY, house.path))


def check_one_line(problem: str) -> None:
    lines = [line for line in problem.splitlines() if line.startswith("batch_job")]
    assert len(lines) == 1
    assert "No space left on device" in lines[0]
    assert "Traceback" not in problem


@pytest.mark.parametrize("blocks", [0, 8, 16])
def test_a_disk_that_fills_up_is_one_line_and_the_run_goes_on_when_there_is_room(
    house: House, in_this_spark: None, capfd: pytest.CaptureFixture[str], blocks: int
) -> None:
    ballast = fill(house.state, blocks)
    code = score(house)
    check_one_line(capfd.readouterr().err)
    assert code == 2
    assert house.rows() == old_rows()
    assert not list(house.state.scores_table.glob("ds=*/**/.*"))
    finished = house.finished()
    ballast.unlink()
    run = job.score(DAY, house.path)
    check_complete(house, run)
    assert run.scoring is not None
    # A task beside the one that failed may have finished one more.
    assert run.scoring.units_resumed >= finished


@pytest.mark.parametrize("blocks", [0, 1])
def test_a_disk_that_is_full_when_all_is_computed(
    house: House,
    in_this_spark: None,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    blocks: int,
) -> None:
    """There is no room for the commit, or for it and no more: then the record is what cannot be written."""

    def examine_and_fill(*arguments: Any) -> Findings:
        found = examine(*arguments)
        fill(house.state, blocks)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(job, "examine", examine_and_fill)
        assert score(house) == 2
    check_one_line(capfd.readouterr().err)
    committed = house.rows() != old_rows()
    (house.state.state / "ballast").unlink()
    run = job.score(DAY, house.path)
    check_complete(house, run)
    assert run.state is (State.UNCHANGED if committed else State.COMMITTED)
    assert run.scoring is not None
    assert run.scoring.units_resumed == (0 if committed else SHARDS)
