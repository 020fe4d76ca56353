"""A scores table that was made before a column, or a field of one: it gets it, its rows read as null, nothing is
lost."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql import SparkSession

from batch_job import read_scores
from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport, Target, read_back, write_file
from batch_job.tables import table
from tests.batch_job.shards import written

OLD_DAY, DAY = "2026-01-13", "2026-01-14"
#: The further heads' answers as they were before answers abstained.
_HEADS = pa.map_(pa.string(), pa.struct([("top_k", schemas.TOP_K), ("vector", schemas.VECTOR)]))
GLAD = {"top_k": [{"label": "glad", "score": 0.75}], "vector": None}
MOOD = {"mood": {**GLAD, "abstained": True}}


def without_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.drop_columns(["abstained", "heads"])


def without_field(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch = batch.drop_columns(["abstained"])
    place = batch.schema.get_field_index("heads")
    return batch.set_column(place, pa.field("heads", _HEADS), pa.array([[("mood", GLAD)]] * batch.num_rows, _HEADS))


@pytest.fixture(params=[without_columns, without_field])
def earlier(request: pytest.FixtureRequest) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Makes the rows of an earlier version."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def before(earlier: Any) -> Any:
    """The further heads of those rows, as this version reads them."""
    return {"mood": {**GLAD, "abstained": None}} if earlier is without_field else None


@pytest.fixture
def folder(tmp_path: Path, earlier: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Path:
    """A table as the former version made it, with a day of two rows."""
    batch = earlier(written.batch(["a", "b"], ["yes", "no"]))
    held = [*batch.schema, *(it for it in table.SCORES if it.name in ("ds", "source"))]
    DeltaTable.create(str(tmp_path), schema=pa.schema(held), partition_by=["ds", "source"])
    path, size, rows, digest = write_file(Target(str(tmp_path), OLD_DAY, "plan", 1), batch.schema, [batch])
    add = table._actions({"ds": OLD_DAY, "source": schemas.ARCHIVE}, [FileReport(path, size, rows, digest)])
    made = DeltaTable(str(tmp_path))
    made.create_write_transaction(actions=add, mode="append", schema=pa.schema(held), partition_by=["ds", "source"])
    return tmp_path


def abstaining(folder: Path, source: str, token: int = 2) -> FileReport:
    plain = written.batch(["c"], ["perhaps"])
    columns = {"abstained": pa.array([True]), "heads": pa.array([list(MOOD.items())], schemas.HEADS)}
    for name, column in columns.items():
        place = plain.schema.get_field_index(name)
        plain = plain.set_column(place, plain.schema.field(place), column)
    return written.file(folder, plain, ds=DAY, token=token, source=source)


def rows(folder: Path, ds: str) -> list[tuple[str, Any, Any]]:
    batches = table.read_files(DeltaTable(str(folder)), ds, ("id", "label", "abstained", "heads"))
    found = [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]
    return [(row["label"], row["abstained"], row["heads"]) for row in found]


def replace(folder: Path) -> None:
    table.replace_partition(folder, DAY, [abstaining(folder, schemas.ARCHIVE)], 2, lambda: None, {"tandem.ds": DAY})


def add(folder: Path) -> None:
    table.add_deferred(folder, DAY, lambda delta: abstaining(folder, schemas.DEFERRED))


@pytest.mark.parametrize("write", [replace, add])
def test_either_kind_of_commit_gives_the_table_the_columns_and_keeps_its_rows(
    folder: Path, before: Any, write: Callable[[Path], None]
) -> None:
    write(folder)
    table_now = DeltaTable(str(folder))
    wanted = {column.name: column.type for column in Schema.from_arrow(table.SCORES).fields}
    assert {column.name: column.type for column in table_now.schema().fields} == wanted
    assert rows(folder, OLD_DAY) == [("yes", None, before), ("no", None, before)]
    assert rows(folder, DAY) == [("perhaps", True, MOOD)]
    # Other readers of the table see the same.
    known = table_now.to_pyarrow_table(columns=["label", "abstained", "heads"]).to_pylist(maps_as_pydicts="strict")
    found = {row["label"]: (row["abstained"], row["heads"]) for row in known}
    assert found == {"yes": (None, before), "no": (None, before), "perhaps": (True, MOOD)}
    again = [abstaining(folder, schemas.ARCHIVE, 3)]
    assert table.replace_partition(folder, DAY, again, 3, lambda: None, {}) == DeltaTable(str(folder)).version()
    version = DeltaTable(str(folder)).version()
    table.add_deferred(folder, DAY, lambda delta: abstaining(folder, schemas.DEFERRED, 4))
    assert DeltaTable(str(folder)).version() == version + 1, "a table of today gets no column"


def test_a_shard_that_the_former_version_has_left_is_read_as_null(folder: Path, before: Any) -> None:
    (file,) = folder.glob(f"ds={OLD_DAY}/*/*.parquet")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    (batch,) = read_back(file, ("heads", "abstained", "label"), digest)
    assert batch.schema.names == ["heads", "abstained", "label"]
    assert batch.column("abstained").null_count == batch.num_rows == 2
    assert [row["heads"] for row in batch.to_pylist(maps_as_pydicts="strict")] == [before] * 2


def test_spark_reads_both_kinds_of_rows(folder: Path, before: Any, spark: SparkSession) -> None:
    replace(folder)
    asked = ("label", "abstained", "heads['mood'].top_k[0].label as mood", "heads['mood'].abstained as unsure")
    found = {row["label"]: tuple(row)[1:] for row in read_scores(spark, folder).selectExpr(*asked).collect()}
    mood = "glad" if before else None
    assert found == {"yes": (None, mood, None), "no": (None, mood, None), "perhaps": (True, "glad", True)}
