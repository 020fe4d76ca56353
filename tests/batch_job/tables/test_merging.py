"""Shards that are merged before they are committed: the same rows, in few files."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import redis
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from batch_job import read_scores
from batch_job.scoring.options import ScoringOptions
from batch_job.shards import shard_files
from batch_job.shards.shard_files import FileReport, Target
from batch_job.tables import merging
from shared_model.errors import JobError
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, attempt, data_files, held_files, message, planned, write_day
from tests.batch_job.shards import written

LINES = [message(number, f"my card number {number} has not arrived") for number in range(300)]


@given(st.lists(st.integers(1, 100), max_size=60), st.integers(1, 400))
def test_groups_are_neighbours_of_a_bounded_size(sizes: list[int], most: int) -> None:
    found = merging.groups(sizes, most)
    assert [place for group in found for place in range(len(sizes))[group]] == list(range(len(sizes)))
    held = [sum(sizes[group]) for group in found]
    assert all(size <= most or len(sizes[group]) == 1 for size, group in zip(held, found, strict=True))
    # Files of at most half the size fill groups.
    if sizes and max(sizes) <= most / 2:
        assert len(found) <= 1 + 2 * sum(sizes) / most


def test_a_day_of_many_shards_is_committed_in_few_files_of_the_same_rows(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions
) -> None:
    write_day(state, LINES)
    run = planned(state, client)

    def die() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        attempt(spark, state, client, options, run, before_commit=die)
    done = attempt(spark, state, client, options, run)
    # The merged file of the first is lost with it, and no shard is.
    assert (done.rows, done.units_resumed) == (300, done.units)
    assert done.units > merging.FEW
    [name] = held_files(state.scores_table)
    assert name in data_files(state.scores_table)
    assert name.startswith(f"{done.plan_id}.merged-0.{done.token}.")
    assert sorted(row["id"] for row in read_scores(spark, state.scores_table, DAY).collect()) == sorted(
        f"m{number:05d}" for number in range(300)
    )
    assert not list(state.scores_table.glob("ds=*/**/*.json"))
    with pq.ParquetFile(DeltaTable(str(state.scores_table)).file_uris()[0]) as file:
        assert file.num_row_groups == 1


def test_a_merged_file_has_checksums_and_a_hash_and_a_damaged_shard_is_named(tmp_path: Path) -> None:
    target = Target(str(tmp_path), DAY, "plan", 3)
    shards = [written.file(tmp_path, written.batch([f"text {number}"] * 50, ["yes"] * 50)) for number in range(3)]
    merged = merging.merge(target, written.batch([], []).schema, shards, "merged-0")
    assert (merged.rows, merged.fingerprint, merged.name.startswith("plan.merged-0.3.")) == (150, "plan", True)
    rows = shard_files.read_back(f"{tmp_path}/{merged.path}", ["text_hash"], merged.sha256)
    assert sum(batch.num_rows for batch in rows) == 150
    with open(tmp_path / shards[1].path, "r+b") as file:
        file.seek(30)
        file.write(b"damaged")
    with pytest.raises(JobError, match=f"{shards[1].name} cannot be read: it is not as it was written; score ds="):
        merging.merge(target, written.batch([], []).schema, shards, "merged-0")


def test_rows_that_are_lost_while_merging_fail_it(tmp_path: Path) -> None:
    shard = written.file(tmp_path, written.batch(["text"], ["yes"]))
    more = FileReport(shard.path, shard.size, shard.rows + 1)
    with pytest.raises(JobError, match="1 rows merged of 2"):
        merging.merge(Target(str(tmp_path), DAY, "plan", 3), written.batch([], []).schema, [more], "merged-0")
