"""The run record survives the trip between steps, and a damaged one says what to do."""

from dataclasses import replace
from pathlib import Path

import pytest

from batch_job import record
from batch_job.record import Input, InputFile, Publication, RecordError, RunRecord, Runtime, Scoring, State

PLANNED = RunRecord(
    ds="2026-01-14",
    run_id="manual__2026-11-21T08:00:00+00:00",
    planned_at="2026-11-21T08:00:00+00:00",
    release="name-0123456789ab",
    runtime=Runtime("/opt/runtime", "3.11.7"),
    input=Input("/data/ds=2026-01-14", (InputFile("a.jsonl", 10, "ab", 2), InputFile("b.jsonl", 5, "cd", 1)), "ef"),
)
SCORING = Scoring(3, "0123", 7, 2, {"empty": 1}, 4, "bf16", {"score": 1.5}, 12.5, 40, 0.01, "2026-11-21T08:01:00+00:00")


@pytest.mark.parametrize(
    "run",
    [
        PLANNED,
        replace(PLANNED, state=State.STALE, token=2, problem="attempt 3 has begun"),
        replace(
            PLANNED, state=State.PUBLISHED, scoring=SCORING, drained=4, publication=Publication("e", 2, True, True)
        ),
    ],
)
def test_a_record_is_read_as_it_was_written(tmp_path: Path, run: RunRecord) -> None:
    path = tmp_path / "new" / "folder" / "run.json"
    record.write(path, run)
    assert record.read(path) == run
    assert record.read(path).input.lines == 3
    assert [file.name for file in path.parent.iterdir()] == ["run.json"]


def test_a_missing_record_says_to_plan(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"none\.json is not there; run `python -m batch_job plan`"):
        record.read(tmp_path / "none.json")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"ds": "2026-01-14"}', '{"input": 3, "scoring": 1, "publication": 2}']
)
def test_a_damaged_record_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"run\.json cannot be read as a run record"):
        record.read(path)
