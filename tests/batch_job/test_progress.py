"""Progress lines: share, rate and time left; rows of running shards count, too."""

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_job import progress
from batch_job.progress import Progress
from batch_job.scoring import models, shard_task
from batch_job.scoring.options import ScoringOptions
from batch_job.shards import binning, shard_files, tally
from batch_job.shards.shard_files import FileReport, Target
from batch_job.shards.tally import RowsDone, Tally
from batch_job.tables import resumable
from shared_model.errors import JobError
from tests.object_store import Fault, Proxy
from tests.shared_model.full_disk import largest_file


def running() -> list[threading.Thread]:
    """Threads that could still log a line."""
    return [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_a_line_says_rows_a_second_and_the_time_that_is_left() -> None:
    assert progress.line("scoring", "rows", 55_397, 221_591, 61.0, 61.0) == (
        "scoring: 55,397 of 221,591 rows (25%) in 1 min 1 s, 908 rows/s, 3 min 3 s left"
    )


def test_the_rate_is_that_of_the_time_in_which_rows_came() -> None:
    assert progress.line("scoring", "rows", 500, 1_000, 15.0, 5.0) == (
        "scoring: 500 of 1,000 rows (50%) in 15 s, 100 rows/s, 5 s left"
    )


def test_nothing_is_said_of_the_time_left_before_a_tenth_or_a_minute() -> None:
    """Engines warm up: 10 of 1,500 rows in 5 s were once `12 min 26 s left` of a run of 35 s."""
    assert progress.line("scoring", "rows", 10, 1_500, 5.0, 5.0) == "scoring: 10 of 1,500 rows (1%) in 5 s, 2 rows/s"
    assert progress.line("scoring", "rows", 150, 1_500, 5.0, 5.0).endswith(", 45 s left")
    assert progress.line("scoring", "rows", 60, 1_500, 60.0, 60.0).endswith(", 24 min 0 s left")


def test_work_that_is_done_has_no_time_left() -> None:
    assert progress.line("scoring", "rows", 10_000, 10_000, 20.0, 20.0) == (
        "scoring: 10,000 of 10,000 rows (100%) in 20 s, 500 rows/s"
    )
    assert progress.line("scoring", "rows", 5, 5, 0.0, 0.0) == "scoring: 5 of 5 rows (100%) in 0 s"


def test_before_the_first_unit_nobody_knows() -> None:
    assert progress.line("scoring", "rows", 0, 1_000, 5.0, 5.0) == "scoring: 0 of 1,000 rows (0%) in 5 s"


@given(st.lists(st.integers(1, 50), min_size=2, max_size=40), st.integers(0, 4))
def test_at_a_steady_rate_the_time_left_never_grows(rows: list[int], preparing: int) -> None:
    """Looks 5 s apart; nothing comes in the first few, and the same rows a second in the others."""
    rate, total = rows[0], rows[0] * 5 * len(rows)
    looks = [(5.0 * (preparing + look), rate * 5 * look, 5.0 * look) for look in range(1, len(rows) + 1)]
    lines = [progress.line("scoring", "rows", done, total, seconds, working) for seconds, done, working in looks]
    left = [_seconds(line) for line in lines[:-1] if "left" in line]
    assert left == sorted(left, reverse=True)
    assert all(f", {rate:,} rows/s" in line for line in lines)
    assert "left" not in lines[-1]


def _seconds(line: str) -> int:
    """The time left in a line."""
    minutes, seconds = re.findall(r", (?:(\d+) min )?(\d+) s left", line)[0]
    return 60 * int(minutes or 0) + int(seconds)


def said(rows: int, counts: list[int], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of a run whose rows are counted as this, the last count over and over."""
    told = threading.Event()

    def done() -> int:
        if len(counts) == 1:
            told.set()
        return counts[0] if len(counts) == 1 else counts.pop(0)

    with Progress("scoring", "rows", rows, done, seconds=0.01):
        assert told.wait(10)
    return [line.split("scoring: ")[1].split(" rows (")[0] for line in capsys.readouterr().err.splitlines()]


def test_what_was_done_before_does_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(400, [100, 100, 250, 500], capsys)[:2] == ["0 of 400", "150 of 400"]


def test_a_unit_that_is_written_twice_is_not_more_than_all(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(400, [0, 300, 500, 500], capsys)
    assert lines[:2] == ["300 of 400", "400 of 400"]


def test_what_is_taken_of_items_is_told_and_all_of_them_come(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    monkeypatch.setattr(progress, "log", lambda line: "publishing: 3 of 5 keys (60%) in" in line and told.set())

    def items() -> Iterator[int]:
        yield from range(3)
        assert told.wait(10)
        yield from range(3, 5)

    with closing(progress.watched("publishing", "keys", 5, items(), seconds=0.01)) as taken:
        assert list(taken) == [0, 1, 2, 3, 4]
    assert not running()


def test_work_says_once_that_it_is_done_however_soon(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress.watched("publishing", "keys", 5, range(5))) == [0, 1, 2, 3, 4]
    [line] = capsys.readouterr().err.splitlines()
    assert "publishing: 5 of 5 keys (100%) in 0 s" in line


def test_no_work_and_work_that_fails_have_no_end_to_be_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress.watched("answering", "requests", 0, [])) == []
    with pytest.raises(ValueError, match="broken"), Progress("scoring", "rows", 5, lambda: 3):
        raise ValueError("broken")
    assert capsys.readouterr().err == ""


def test_looks_that_take_long_are_far_between(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A look lists what tasks have written. One of 600 took a second: a fifth of the store's time."""
    now, pauses = [0.0], list[float]()

    def counted() -> int:
        now[0] += 1.0
        return 5

    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    watching = Progress("scoring", "rows", 10, counted, seconds=5.0)
    over = Mock(wait=lambda seconds: pauses.append(seconds) or len(pauses) == 3)
    monkeypatch.setattr(watching, "_over", over)
    monkeypatch.setattr(watching, "_thread", Mock())
    with watching:
        watching._run()
    assert pauses == [5.0, 20.0, 20.0]


def test_a_rate_is_not_made_up_of_the_moment_between_two_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All comes just after a look that found nothing."""
    now, counts = iter([0.0, 5.0, 5.001]), iter([0, 0, 1_000])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    watching = Progress("scoring", "rows", 1_000, lambda: next(counts), seconds=5.0)
    monkeypatch.setattr(watching, "_thread", Mock())
    with watching:
        watching._say()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("scoring: 1,000 of 1,000 rows (100%) in 5 s, 200 rows/s")


def test_who_takes_no_more_is_told_no_more() -> None:
    with closing(progress.watched("publishing", "keys", 5, range(5))) as taken:
        assert next(taken) == 0
        assert running()
    assert not running()


MINE = ("2026-01-14", "plan", 2)


def test_rows_of_all_tasks_count_once_however_often_a_task_runs(tmp_path: Path) -> None:
    mine, other = Target(str(tmp_path), *MINE, driver="ab12"), Target(str(tmp_path), *MINE, driver="ab13")
    assert RowsDone(mine)() == 0
    seconds = iter(range(100))
    first, copy, second, others = (
        Tally(target, f"{tally.TASK}{number}", lambda: next(seconds))
        for target, number in ((mine, 0), (mine, 0), (mine, 1), (other, 0))
    )
    others.count("00000-0", 700)
    first.count("00000-0", 64)
    done = RowsDone(mine)
    assert done() == 64
    first.count("00000-0", 99)
    first.count("00001-0", 5)
    assert done() == 104
    # A task that Spark runs twice.
    copy.count("00000-0", 32)
    assert done() == 32
    second.count("00002-0", 8)
    assert done() == 40
    resumable.remove_temporary(mine)
    assert (RowsDone(mine)(), RowsDone(other)()) == (0, 700)


def test_a_look_at_progress_lists_no_shard_and_reads_no_tally_again(
    s3: Proxy, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "_FAR_SECONDS", 0.0)
    mine = Target(s3_url, *MINE)
    shard_files.write_sidecar(mine, FileReport(mine.path("00000-0", "0" * 64), 0, 10))
    task = Tally(mine, f"{tally.TASK}0")
    task.count("00000-0", 10)
    done = RowsDone(mine)
    assert (done(), done()) == (10, 10)
    s3.clear()
    task.count("00001-0", 7)
    assert (done(), done()) == (17, 17)
    asked = [path for method, path in s3.seen if method == "GET"]
    assert len(asked) == 3
    assert all("_tallies" in path for path in asked)


def test_a_task_writes_at_most_once_a_second_but_always_its_last_word(tmp_path: Path) -> None:
    mine, now = Target(str(tmp_path), *MINE), [0.0]
    task, seen = Tally(mine, "gate-0", lambda: now[0]), RowsDone(mine, "gate-")
    for now[0], rows in ((0.5, 10), (1.0, 20), (1.9, 30)):
        task.count("gate", rows)
    assert seen() == 20
    task.count("gate", 31)
    task.write()
    assert (seen(), RowsDone(mine)()) == (31, 0)


def test_a_tally_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    mine = Target(str(tmp_path), *MINE)
    with largest_file(0), pytest.raises(JobError, match=r"gate-0.* could not be written: "):
        Tally(mine, "gate-0").write()
    assert RowsDone(mine, "gate-")() == 0


def test_rows_of_a_unit_count_while_the_engine_is_at_it(
    tmp_path: Path, options: ScoringOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task of two units, four texts in each batch of its engine."""
    monkeypatch.setattr(models, "_opened", {})
    monkeypatch.setattr(tally, "_SECONDS", 0.0)
    target, seen = Target(str(tmp_path), *MINE), list[int]()
    told = Tally.write

    def write(self: Tally) -> None:
        told(self)
        seen.append(RowsDone(target)())

    monkeypatch.setattr(Tally, "write", write)
    small = replace(options, batch_rows=4, deduplicate=False)
    reports = list(shard_task.score_shards(of_two_shards(), small, target, 25))
    assert seen == [4, 8, 12, 12, 16, 20, 24, 24, 24]
    assert (len(reports), RowsDone(target)()) == (2, 24)


def of_two_shards() -> Iterator[pa.RecordBatch]:
    lines = {
        "id": [f"m{number:02d}" for number in range(24)],
        "text": [f"card {number % 12}" for number in range(24)],
        "pair": pa.nulls(24, pa.string()),
        binning.TEXT_HASH: [f"{number // 2:02d}" for number in range(24)],
        binning.BIN: pa.array([0] * 12 + [1] * 12, pa.int32()),
    }
    yield pa.RecordBatch.from_pydict(lines)


def test_only_a_task_that_runs_again_looks_through_the_shards_of_the_day(
    s3: Proxy, s3_url: str, options: ScoringOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are as many as the day has: a look of every task would be slower with every task."""
    monkeypatch.setattr(models, "_opened", {})
    target = Target(s3_url, *MINE)

    def run() -> tuple[list[FileReport], int]:
        s3.clear()
        reported = [
            batch.column("report")[0].as_py() for batch in shard_task.score_shards(of_two_shards(), options, target, 25)
        ]
        looks = sum(method == "GET" and "list-type" in path for method, path in s3.seen)
        return sorted(map(FileReport.from_json, reported), key=lambda it: it.bin_number), looks

    first, looks = run()
    assert ([report.rows for report in first], looks) == ([12, 12], 0)
    assert run() == (first, 1)


def test_a_tally_that_a_kill_left_unfinished_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = list[str]()
    monkeypatch.setattr("os.link", lambda source, _: names.append(Path(source).name))
    assert Tally(Target(str(tmp_path), *MINE), f"{tally.TASK}3").begin()
    assert [bool(resumable._OURS.fullmatch(name)) for name in names] == [True]


def test_one_copy_of_a_task_began_first_and_its_answer_may_be_lost(s3: Proxy, s3_url: str) -> None:
    target = Target(s3_url, *MINE)
    s3.inject(Fault.LOST, 1, "PUT", "_tallies")
    task, copy = (Tally(target, f"{tally.TASK}3") for _ in range(2))
    assert (task.begin(), copy.begin(), task.begin(), s3.pending) == (True, False, False, 0)
    assert RowsDone(target)() == 0
    copy.count("00000-0", 5)
    copy.write()
    assert RowsDone(target)() == 5
