"""A scores table that was made before there were heads: it gets the column, its rows read as null, nothing is lost."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport, Target, read_back, write_file
from batch_job.tables import table
from tests.batch_job.shards import written

OLD_DAY, DAY = "2026-01-13", "2026-01-14"
MOOD = {"mood": {"top_k": [{"label": "glad", "score": 0.75}], "vector": None}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table as the former version made it, with a day of two rows."""
    earlier = pa.schema([column for column in table.SCORES if column.name != "heads"])
    DeltaTable.create(str(tmp_path), schema=earlier, partition_by=["ds", "source"])
    batch = written.batch(["a", "b"], ["yes", "no"]).drop_columns(["heads"])
    path, size, rows, digest = write_file(Target(str(tmp_path), OLD_DAY, "plan", 1), batch.schema, [batch])
    add = table._actions({"ds": OLD_DAY, "source": schemas.ARCHIVE}, [FileReport(path, size, rows, digest)])
    made = DeltaTable(str(tmp_path))
    made.create_write_transaction(actions=add, mode="append", schema=earlier, partition_by=["ds", "source"])
    return tmp_path


def with_heads(folder: Path, source: str, token: int = 2) -> FileReport:
    plain = written.batch(["c"], ["perhaps"])
    place = plain.schema.get_field_index("heads")
    batch = plain.set_column(place, plain.schema.field(place), pa.array([list(MOOD.items())], schemas.HEADS))
    return written.file(folder, batch, ds=DAY, token=token, source=source)


def rows(folder: Path, ds: str) -> list[dict[str, Any]]:
    batches = table.read_files(DeltaTable(str(folder)), ds, ("id", "label", "heads"))
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


def replace(folder: Path) -> None:
    table.replace_partition(folder, DAY, [with_heads(folder, schemas.ARCHIVE)], 2, lambda: None, {"tandem.ds": DAY})


def add(folder: Path) -> None:
    table.add_deferred(folder, DAY, lambda delta: with_heads(folder, schemas.DEFERRED))


@pytest.mark.parametrize("write", [replace, add])
def test_either_kind_of_commit_gives_the_table_the_column_and_keeps_its_rows(folder: Path, write: Any) -> None:
    write(folder)
    names = [column.name for column in DeltaTable(str(folder)).schema().fields]
    assert sorted(names) == sorted(table.SCORES.names)
    assert [(row["label"], row["heads"]) for row in rows(folder, OLD_DAY)] == [("yes", None), ("no", None)]
    assert [(row["label"], row["heads"]) for row in rows(folder, DAY)] == [("perhaps", MOOD)]
    # Other readers of the table see the same.
    known = DeltaTable(str(folder)).to_pyarrow_table(columns=["label", "heads"]).to_pylist(maps_as_pydicts="strict")
    found = {row["label"]: row["heads"] for row in known}
    assert found == {"yes": None, "no": None, "perhaps": MOOD}
    write_again = table.replace_partition(
        folder, DAY, [with_heads(folder, schemas.ARCHIVE, 3)], 3, lambda: None, {"tandem.ds": DAY}
    )
    assert write_again == DeltaTable(str(folder)).version()


def test_a_shard_that_the_former_version_has_left_is_read_as_null(folder: Path) -> None:
    (file,) = folder.glob(f"ds={OLD_DAY}/*/*.parquet")
    (batch,) = read_back(file, ("heads", "label"))
    assert batch.schema.names == ["heads", "label"]
    assert batch.column("heads").null_count == batch.num_rows == 2


def test_spark_reads_both_kinds_of_rows(folder: Path, spark: SparkSession) -> None:
    replace(folder)
    found = table.read_scores(spark, folder).selectExpr("label", "heads['mood'].top_k[0].label as mood").collect()
    assert {row["label"]: row["mood"] for row in found} == {"yes": None, "no": None, "perhaps": "glad"}
