"""A scores table that was made before a column: it gets the column, its rows read as null, nothing is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport, Target, read_back, write_file
from batch_job.tables import table
from tests.batch_job.shards import written

OLD_DAY, DAY = "2026-01-13", "2026-01-14"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table as the former version made it, with a day of two rows."""
    earlier = pa.schema([column for column in table.SCORES if column.name != "abstained"])
    DeltaTable.create(str(tmp_path), schema=earlier, partition_by=["ds", "source"])
    batch = written.batch(["a", "b"], ["yes", "no"]).drop_columns(["abstained"])
    path, size, rows, digest = write_file(Target(str(tmp_path), OLD_DAY, "plan", 1), batch.schema, [batch])
    add = table._actions({"ds": OLD_DAY, "source": schemas.ARCHIVE}, [FileReport(path, size, rows, digest)])
    made = DeltaTable(str(tmp_path))
    made.create_write_transaction(actions=add, mode="append", schema=earlier, partition_by=["ds", "source"])
    return tmp_path


def abstaining(folder: Path, source: str) -> FileReport:
    plain = written.batch(["c"], ["perhaps"])
    place = plain.schema.get_field_index("abstained")
    batch = plain.set_column(place, plain.schema.field(place), pa.array([True]))
    return written.file(folder, batch, ds=DAY, token=2, source=source)


def rows(folder: Path, ds: str) -> list[tuple[str, Any]]:
    batches = table.read_files(DeltaTable(str(folder)), ds, ("id", "label", "abstained"))
    return [(row["label"], row["abstained"]) for batch in batches for row in batch.to_pylist()]


def replace(folder: Path) -> None:
    table.replace_partition(folder, DAY, [abstaining(folder, schemas.ARCHIVE)], 2, lambda: None, {"tandem.ds": DAY})


def add(folder: Path) -> None:
    table.add_deferred(folder, DAY, lambda delta: abstaining(folder, schemas.DEFERRED))


@pytest.mark.parametrize("write", [replace, add])
def test_either_kind_of_commit_gives_the_table_the_column_and_keeps_its_rows(
    folder: Path, write: Callable[[Path], None]
) -> None:
    write(folder)
    names = [column.name for column in DeltaTable(str(folder)).schema().fields]
    assert sorted(names) == sorted(table.SCORES.names)
    assert rows(folder, OLD_DAY) == [("yes", None), ("no", None)]
    assert rows(folder, DAY) == [("perhaps", True)]
    # Other readers of the table see the same.
    known = DeltaTable(str(folder)).to_pyarrow_table(columns=["label", "abstained"]).to_pylist()
    assert {row["label"]: row["abstained"] for row in known} == {"yes": None, "no": None, "perhaps": True}


def test_a_shard_that_the_former_version_has_left_is_read_as_null(folder: Path) -> None:
    (file,) = folder.glob(f"ds={OLD_DAY}/*/*.parquet")
    (batch,) = read_back(file, ("abstained", "label"))
    assert batch.schema.names == ["abstained", "label"]
    assert batch.column("abstained").null_count == batch.num_rows == 2
