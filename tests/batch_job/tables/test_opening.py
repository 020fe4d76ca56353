"""Tables with features that files alone do not show, and tables with a damaged log, are refused by name."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from batch_job import read_scores
from batch_job.checks import history
from batch_job.deferred.scores import DeferredScores
from batch_job.steps import publish, read
from batch_job.tables import table
from shared_model.errors import JobError
from tests.batch_job.conftest import DAY
from tests.batch_job.shards import written
from tests.shared_model.full_disk import largest_file

NEXT_DAY = "2026-01-15"

Use = Callable[[Path], object]
USES: Mapping[str, Use] = {
    "read": lambda folder: list(read.lines(folder, DAY, 0, as_json=False)),
    "publish": lambda folder: publish.committed_partition(folder, DAY),
    "commit": lambda folder: written.commit(folder, DAY, ["no"], token=2),
    "resume": lambda folder: table.open_table(folder, table.SCORES),
    "label history": lambda folder: history.last_day(folder, NEXT_DAY),
    "deferred look-up": lambda folder: DeferredScores(folder, DAY, 3600).scored({bytes(16)}, "bf16"),
    "floor of tokens": lambda folder: table.last_attempt([folder], DAY),
    "quarantined": lambda folder: table.quarantined(folder, DAY, 1),
    "files held": table.ever_held,
}
every_use = pytest.mark.parametrize("use", USES.values(), ids=USES.keys())

DELETION_VECTORS = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors"],
}
#: This version lists no features.
COLUMN_MAPPING = {"minReaderVersion": 2, "minWriterVersion": 5}
every_protocol = pytest.mark.parametrize(
    ("protocol", "named"),
    [
        (DELETION_VECTORS, r"asks for reader version 3 \(features: deletionVectors\)"),
        (COLUMN_MAPPING, r"asks for reader version 2 \(features: columnMapping\)"),
    ],
    ids=["deletionVectors", "columnMapping"],
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A scores table with one day."""
    written.commit(tmp_path, DAY, ["yes", "no"])
    return tmp_path


def log(folder: Path, version: int) -> Path:
    return folder / "_delta_log" / f"{version:020d}.json"


def ask_for(folder: Path, protocol: object) -> None:
    """Enable such a feature as another engine does."""
    log(folder, 2).write_text(json.dumps({"protocol": protocol}) + "\n")


@every_use
@every_protocol
def test_a_table_of_newer_readers_is_refused_by_name(
    folder: Path, use: Use, protocol: Mapping[str, object], named: str
) -> None:
    ask_for(folder, protocol)
    with pytest.raises(JobError, match=named):
        use(folder)
    # Nothing was committed on top of it.
    assert DeltaTable(str(folder)).version() == 2


@every_protocol
def test_spark_is_told_by_name_as_well(
    folder: Path, spark: SparkSession, protocol: Mapping[str, object], named: str
) -> None:
    ask_for(folder, protocol)
    with pytest.raises(JobError, match=named):
        read_scores(spark, folder)


@every_use
@pytest.mark.parametrize("content", [b'{"add": {"path": "ds=2026', b"\0\0\0\0"])
def test_a_damaged_log_is_named_in_one_line(folder: Path, use: Use, content: bytes) -> None:
    log(folder, 1).write_bytes(content)
    with pytest.raises(
        JobError,
        match=rf"^{folder} cannot be read as a Delta table: Kernel error: Json [^\n<]+; restore its _delta_log$",
    ):
        use(folder)


def test_a_disk_without_room_for_a_first_table_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "scores"
    with (
        largest_file(100),
        pytest.raises(JobError, match=rf"^{folder}: no table could be made: [^\n\x1b]*File too large"),
    ):
        table.open_table(folder, table.SCORES)
    assert table.open_table(folder, table.SCORES).version() == 0


def test_damage_below_a_checkpoint_is_named(folder: Path) -> None:
    """deltalake does not read that far; what is swept depends on it."""
    DeltaTable(str(folder)).create_checkpoint()
    log(folder, 1).write_bytes(b"{")
    with pytest.raises(JobError, match=rf"^{log(folder, 1)} cannot be read: [^\n]+; restore it$"):
        table.ever_held(folder)
