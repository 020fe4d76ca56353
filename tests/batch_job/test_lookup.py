"""Which record a step works on where several inputs have been planned, and what is said of the others."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from batch_job import lookup, run_record
from batch_job.run_record import ARCHIVE, Publication, RunRecord, State
from shared_model.errors import JobError
from shared_model.settings import StateSettings
from tests.batch_job.test_run_record import PLANNED, SCORING

DAY, MINE = PLANNED.ds, "/mine/{ds}"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateSettings:
    monkeypatch.delenv("TANDEM_INPUT_PATH", raising=False)
    return StateSettings(state=tmp_path)


def write(where: StateSettings, run_id: str, identity: str, age: int, **fields: object) -> Path:
    """A run's record, written so many seconds ago."""
    run: RunRecord = replace(PLANNED, run_id=run_id, input=replace(PLANNED.input, identity=identity), **fields)  # type: ignore[arg-type]
    path = where.runs_dir / DAY / f"{run_id}.json"
    run_record.write(path, run)
    written = path.stat().st_mtime - age
    os.utime(path, (written, written))
    return path


def test_the_newest_run_of_the_input_counts_and_a_newer_one_of_another_is_told(
    state: StateSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(state, "old", ARCHIVE, 300)
    demo = write(state, "demo", ARCHIVE, 200)
    mine = write(state, "mine", MINE, 100)
    assert lookup.find(None, DAY, state) == demo
    assert f"run mine of ds={DAY}, the newest, is of {MINE}; this is run demo of {ARCHIVE}" in capsys.readouterr().err
    monkeypatch.setenv("TANDEM_INPUT_PATH", MINE)
    assert lookup.find(None, DAY, state) == mine
    assert capsys.readouterr().err == ""
    assert lookup.find(demo, DAY, state) == demo


def test_runs_of_other_inputs_alone_are_named_with_the_way_to_them(state: StateSettings) -> None:
    path = write(state, "mine", MINE, 0)
    with pytest.raises(JobError) as caught:
        lookup.find(None, DAY, state)
    assert str(caught.value) == (
        f"run mine of ds={DAY}, the newest, is of {MINE}, and {ARCHIVE}, {state.state}/messages, has none: set "
        f"TANDEM_INPUT_PATH and its like as for `plan`, or name the run by --record {path}"
    )


def test_a_record_of_an_earlier_version_is_of_the_default_archive(state: StateSettings) -> None:
    path = write(state, "old", ARCHIVE, 0)
    path.write_text(path.read_text().replace(f',\n  "identity": "{ARCHIVE}"', ""))
    assert "identity" not in path.read_text()
    assert lookup.find(None, DAY, state) == path


def test_an_attempt_that_was_refused_is_told_if_it_is_the_latest_of_its_input(state: StateSettings) -> None:
    refused = {"state": State.REFUSED, "problem": f"ds={DAY}: refused by the gate, nothing committed: labels: …"}
    write(state, "committed", MINE, 300, state=State.COMMITTED, scoring=SCORING)
    assert lookup.latest_refusal(state, DAY, MINE) == ""
    write(state, "refused", MINE, 200, **refused)
    said = (
        f"the latest attempt at ds={DAY}, run refused, was refused: refused by the gate, nothing committed: labels: …"
    )
    assert lookup.latest_refusal(state, DAY, MINE) == said
    assert lookup.latest_refusal(state, DAY, MINE, besides="refused") == ""
    assert lookup.latest_refusal(state, DAY, ARCHIVE) == ""
    path = write(state, "again", MINE, 100, state=State.COMMITTED, scoring=SCORING)
    assert lookup.latest_refusal(state, DAY, MINE) == ""
    path.write_text("{")
    assert "again.json cannot be read as a run record" in lookup.latest_refusal(state, DAY, MINE)


def test_a_day_that_only_the_demo_has_is_shown_the_way_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = StateSettings(state=tmp_path / ".tandem")
    with pytest.raises(JobError, match=r"holds no run; run `python -m batch_job plan --ds 2026-01-14` first$"):
        lookup.find(None, DAY, state)
    write(StateSettings(state=state.state / "demo"), "demo", ARCHIVE, 0)
    with pytest.raises(JobError, match=r"first\. `make demo` has ds=2026-01-14 .*: TANDEM_STATE=\.tandem/demo before"):
        lookup.find(None, DAY, state)
    assert lookup.in_demo(state, DAY, MINE) == lookup.in_demo(state, "2026-01-20", ARCHIVE) == ""


def test_an_epoch_is_of_the_input_whose_run_made_it_live(state: StateSettings) -> None:
    published = {"state": State.PUBLISHED, "scoring": SCORING}
    write(state, "mine", MINE, 0, publication=Publication(f"{DAY}.3", 2, True, True), **published)
    write(state, "not live", ARCHIVE, 0, publication=Publication(f"{DAY}.4", 0, False, False, "older"), **published)
    assert lookup.identity_of(state, f"{DAY}.3", PLANNED.release) == MINE
    assert lookup.identity_of(state, f"{DAY}.4", PLANNED.release) == ""
    assert lookup.identity_of(state, f"{DAY}.3", "other-0123456789ab") == ""
    assert lookup.identity_of(state, "2026-01-20.1", PLANNED.release) == ""
