"""The run record survives the trip between steps, and a damaged one says what to do."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from batch_job import run_record
from batch_job.run_record import (
    Agreement,
    Findings,
    Input,
    InputFile,
    Outcome,
    Publication,
    QuarantinedLine,
    RecordError,
    RunRecord,
    Runtime,
    Scoring,
    State,
    Verdict,
    Worker,
)
from tests.shared_model.full_disk import largest_file

PLANNED = RunRecord(
    ds="2026-01-14",
    run_id="manual__2026-11-21T08:00:00+00:00",
    planned_at="2026-11-21T08:00:00+00:00",
    release="name-0123456789ab",
    runtime=Runtime("/opt/runtime", "3.11.7"),
    input=Input("/data/ds=2026-01-14", (InputFile("a.jsonl", 10, "ab", 2), InputFile("b.jsonl", 5, "cd", 1)), "ef"),
)
SCORING = Scoring(
    3,
    "0123",
    7,
    2,
    {"empty": 1},
    4,
    "bf16",
    {"read": 0.2, "score": 1.6, "workers tokenised": 0.3, "workers ran": 2.4},
    12.5,
    40,
    0.01,
    "2026-11-21T08:01:00+00:00",
    1,
    (Worker(17, 1), Worker(18, 1)),
    slots=2,
)

FINDINGS = Findings(
    rows=383,
    labels={"yes": 100, "no": 97, **{f"label {number}": 10 for number in range(18)}, "rare": 3, "rarer": 3},
    lengths=(240, 120, 23),
    quarantined={"empty": 1},
    before="2026-01-13",
    labels_before={"yes": 120, "no": 96, **{f"label {number}": 10 for number in range(18)}, "rare": 2, "rarer": 2},
    agreement=Agreement(2_000, 1_850, 1_000, 999),
    pace=(100.0, 150.0, 160.0, 140.0, 150.0, 90.0, 0.0),
    pace_seconds=0.8,
    verdicts=(
        Verdict("counts", Outcome.OK, 0, "0 rows apart", "384 lines in"),
        Verdict("labels", Outcome.FAIL, 0.8123, "fail > 0.270", "PSI 0.812", accepted=True),
        Verdict("agreement", Outcome.UNPROVEN, None, "", "the release has no INT8 to compare"),
    ),
    quarantined_examples=(QuarantinedLine("empty", "b.jsonl", ""),),
)


@pytest.mark.parametrize(
    "run",
    [
        PLANNED,
        replace(PLANNED, state=State.STALE, token=2, problem="attempt 3 has begun"),
        replace(PLANNED, state=State.FAILED, token=2, problem="refused by the gate", findings=FINDINGS),
        replace(
            PLANNED, state=State.PUBLISHED, scoring=SCORING, drained=4, publication=Publication("e", 2, True, True)
        ),
    ],
)
def test_a_record_is_read_as_it_was_written(tmp_path: Path, run: RunRecord) -> None:
    path = tmp_path / "new" / "folder" / "run.json"
    run_record.write(path, run)
    assert run_record.read(path) == run
    assert run_record.read(path).input.lines == 3
    assert repr(run_record.read(path)) == repr(run)
    assert [file.name for file in path.parent.iterdir()] == ["run.json"]


def test_what_a_record_does_not_say_of_speed_is_not_made_up(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run_record.write(path, replace(PLANNED, scoring=SCORING))
    document = json.loads(path.read_text())
    del document["scoring"]["slots"]
    path.write_text(json.dumps(document))
    earlier = run_record.read(path).scoring
    assert earlier is not None
    assert (earlier.tokens_per_second, earlier.busy_share) == (25.0, None)
    assert SCORING.busy_share == pytest.approx(0.75)
    stood_already = replace(SCORING, seconds={})
    assert (stood_already.tokens_per_second, stood_already.busy_share) == (0.0, None)


@pytest.mark.parametrize(("live", "state"), [(True, State.PUBLISHED), (False, State.COMMITTED)])
def test_a_run_that_an_earlier_version_called_published_is_so_only_if_it_was_live(
    tmp_path: Path, live: bool, state: State
) -> None:
    path, publication = tmp_path / "run.json", Publication("2026-01-14.3", 2, moved=live, live=live)
    run_record.write(path, replace(PLANNED, state=State.PUBLISHED, scoring=SCORING, publication=publication))
    assert run_record.read(path).state is state


def test_findings_of_an_earlier_version_have_no_examples(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run_record.write(path, replace(PLANNED, findings=FINDINGS))
    document = json.loads(path.read_text())
    del document["findings"]["quarantined_examples"]
    path.write_text(json.dumps(document))
    assert run_record.read(path).findings == replace(FINDINGS, quarantined_examples=())


def test_a_record_of_an_earlier_version_may_tell_threads_and_page_checksums(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run = replace(PLANNED, scoring=SCORING)
    run_record.write(path, run)
    document = json.loads(path.read_text())
    for worker in document["scoring"]["workers"]:
        worker |= {"width": 1, "threads": 2, "idle": True}
    document["input"]["files"][0]["unchecked"] = True
    path.write_text(json.dumps(document))
    assert run_record.read(path) == run


def test_a_missing_record_says_to_plan(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"none\.json is not there; run `python -m batch_job plan`"):
        run_record.read(tmp_path / "none.json")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"ds": "2026-01-14"}', '{"input": 3, "scoring": 1, "publication": 2}']
)
def test_a_damaged_record_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"run\.json cannot be read as a run record"):
        run_record.read(path)


def test_a_record_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run_record.write(path, PLANNED)
    with largest_file(100), pytest.raises(RecordError, match=r"run\.json could not be written: File too large"):
        run_record.write(path, replace(PLANNED, token=2))
    assert run_record.read(path) == PLANNED
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
