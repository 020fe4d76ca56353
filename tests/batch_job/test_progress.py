"""What is said of a job that runs: how far, how fast, how long still; units on disk are what is done."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from batch_job import progress
from batch_job.outputs import writing
from batch_job.outputs.writing import FileReport, Target
from batch_job.progress import Progress


def running() -> list[threading.Thread]:
    """Who would still say something."""
    return [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_a_line_says_rows_a_second_and_the_time_that_is_left() -> None:
    assert progress.line("scoring", "rows", 55_397, 221_591, 61.0) == (
        "scoring: 55,397 of 221,591 rows in 1 min 1 s, 908 rows/s, 3 min 3 s left"
    )


def test_before_the_first_unit_nobody_knows() -> None:
    assert progress.line("scoring", "rows", 0, 1_000, 5.0) == "scoring: 0 of 1,000 rows in 5 s"


def said(rows: int, counts: list[int], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of a run whose rows are counted as this, the last count over and over."""
    told = threading.Event()

    def done() -> int:
        if len(counts) == 1:
            told.set()
        return counts[0] if len(counts) == 1 else counts.pop(0)

    with Progress("scoring", "rows", rows, done, seconds=0.01):
        assert told.wait(10)
    return [line.split("scoring: ")[1].split(" rows in")[0] for line in capsys.readouterr().err.splitlines()]


def test_what_was_done_before_does_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(400, [100, 100, 250, 500], capsys)[:2] == ["0 of 400", "150 of 400"]


def test_a_unit_that_is_written_twice_is_not_more_than_all(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(400, [0, 300, 500, 500], capsys)
    assert lines[:2] == ["300 of 400", "400 of 400"]


def test_what_is_taken_of_items_is_told_and_all_of_them_come(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    monkeypatch.setattr(progress, "say", lambda line: "publishing: 3 of 5 keys in" in line and told.set())

    def items() -> Iterator[int]:
        yield from range(3)
        assert told.wait(10)
        yield from range(3, 5)

    with closing(progress.watched("publishing", "keys", 5, items(), seconds=0.01)) as taken:
        assert list(taken) == [0, 1, 2, 3, 4]
    assert not running()


def test_what_is_over_before_the_first_interval_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress.watched("publishing", "keys", 5, range(5))) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().err == ""


def test_who_takes_no_more_is_told_no_more() -> None:
    with closing(progress.watched("publishing", "keys", 5, range(5))) as taken:
        assert next(taken) == 0
        assert running()
    assert not running()


def test_rows_are_done_when_their_unit_is_there(tmp_path: Path) -> None:
    mine = Target(str(tmp_path), "2026-01-14", "plan", 2, driver="ab12")
    other = Target(str(tmp_path), "2026-01-14", "plan", 1, driver="ab13")
    assert writing.rows_done(mine) == 0
    for target, unit, rows in ((mine, "00000-0", 10), (mine, "00001-0", 20), (other, "00002-0", 40)):
        path = target.path(unit, "0" * 64)
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        writing.write_sidecar(target, FileReport(path, 0, rows, poisoned=("m1",)))
    assert writing.rows_done(mine) == 32
