"""Counts of committed rows by day and release, on a disk and behind a URL."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from batch_job.inputs.delta import open_table
from batch_job.shards import schemas
from batch_job.tables import counting, table
from batch_job.tables.counting import Counts
from shared_model.errors import JobError
from tests.batch_job.shards import written
from tests.batch_job.tables import days
from tests.batch_job.tables.days import RELEASE

OTHER = "small-ba9876543210"


def counted(folder: Path | str, *wanted: str) -> dict[counting.Key, Counts]:
    return counting.count(open_table(folder), wanted)


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.heavy)])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    return f"{request.getfixturevalue('s3_url')}/scores" if request.param == "s3" else tmp_path / "scores"


def test_rows_are_counted_by_day_and_release(folder: Path) -> None:
    days.commit(folder, "2026-01-14", ["yes", "no", "yes"], [0.5, 0.505, 1.0], [3, 3, 9], [RELEASE, RELEASE, OTHER], 1)
    days.commit(folder, "2026-01-15", ["no"])
    days.commit(folder, "2026-01-16", ["no"])
    # Answers to requests are no messages of the day.
    answers = written.file(folder, written.batch(["a"], ["perhaps"]), ds="2026-01-15", source=schemas.DEFERRED)
    table.add_deferred(folder, "2026-01-15", lambda _: answers)
    assert counting.days(open_table(folder)) == ["2026-01-14", "2026-01-15", "2026-01-16"]
    found = counted(folder, "2026-01-14", "2026-01-15")
    assert set(found) == {("2026-01-14", RELEASE), ("2026-01-14", OTHER), ("2026-01-15", RELEASE)}
    one = found["2026-01-14", RELEASE]
    assert (one.rows, one.truncated, dict(one.labels)) == (2, 1, {"yes": 1, "no": 1})
    assert (dict(one.scores), dict(one.lengths)) == ({50: 2}, {3: 2})
    other = found["2026-01-14", OTHER]
    assert (other.rows, other.truncated, dict(other.scores), dict(other.lengths)) == (1, 0, {100: 1}, {9: 1})
    assert dict(found["2026-01-15", RELEASE].labels) == {"no": 1}


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    days.commit(tmp_path, "2026-01-14", ["yes"] * 100)
    (file,) = (Path(it) for it in DeltaTable(str(tmp_path)).file_uris())
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(JobError, match=rf"{file.name} cannot be read: .*; score ds=2026-01-14 again"):
        counted(tmp_path, "2026-01-14")
